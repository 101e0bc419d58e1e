"""The answer on arms at equal tuning effort, from the record alone.

Runs in the service's process.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import astuple, fields

from pydantic import Field

from eigensweep.results import tuning
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.comparison import check_arm, find_metric, is_number
from eigensweep.service.api.schemas import AnswerModel, Metric
from eigensweep.service.record.overviews import list_tries
from eigensweep.service.record.queries import Queries

METHOD = (
    "mean test value of the trial with the best validation value among k, without bias; "
    "95% band of each number of trials alone, for any distribution"
)


class Effort(AnswerModel):
    """Arms and experiments at equal tuning effort."""

    method: str
    version: str = Field(description="Version of Eigensweep that compared")
    metric: Metric | None = Field(description="What is reported; null if no side has a curve")
    reason: str | None = Field(description="Why sides are not compared; null where they are")
    sides: list[tuning.EffortSide]
    pairs: list[tuning.EffortPair]


def measure_effort(
    record: Queries, names: Sequence[str], metric: str | None, version: str
) -> Effort:
    """Return the mean best test value against the number of trials, for each search of `names`.

    A name is EXPERIMENT/ARM for the trials of an arm, or EXPERIMENT for all of it. A single trial,
    EXPERIMENT/NUMBER, is no search, and has a reason in place of a curve.

    Raises:
        NotFoundError: if there is no such experiment or arm.
        UnknownMetricError: if the task has no such metric.
    """
    found = [_find(record, name, metric) for name in names]
    reason, sides, pairs = tuning.compare_searches(found)
    return Effort(
        method=METHOD,
        version=version,
        metric=next((Metric.made_of(e.metric) for e in found if e.side.reason is None), None),
        reason=reason,
        sides=sides,
        pairs=pairs,
    )


def write_csv(effort: Effort) -> str:
    """Return the points of all curves as a table."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["name", *(each.name for each in fields(tuning.EffortPoint))])
    for side in effort.sides:
        rows.writerows([side.name, *astuple(point)] for point in side.points)
    return text.getvalue()


def _find(record: Queries, name: str, metric: str | None) -> tuning.Searched:
    id, _, part = name.partition("/")
    experiment = record.row(id)
    task = dict(experiment.spec["task"])
    measured, baseline = find_metric(experiment, task, metric)
    tries: list[tuning.Try] = []
    reason = "it is one trial, not a search"
    if not is_number(part):
        check_arm(experiment, part or None)
        tries, reason = list_tries(record, id, part or None), ""
    return tuning.make_searched(
        name,
        experiment.name,
        ExperimentSpec.from_stored(experiment.spec),
        tries,
        measured,
        Metric.made_of(experiment, name=experiment.metric),
        task,
        baseline,
        reason,
    )

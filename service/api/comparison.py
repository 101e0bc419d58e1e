"""The answers on a comparison of trials, and of arms at equal tuning effort, from the record alone.

Runs in the service's process.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import astuple, fields
from typing import Any

from pydantic import Field, ValidationError

from eigensweep.results import tuning
from eigensweep.results.comparison import Pair, Split, Subject, compare_all
from eigensweep.results.ranking import UNRANKED
from eigensweep.results.statistics import TEST, Summary
from eigensweep.results.trial_result import Metrics, ReplicateResult, Result
from eigensweep.search_spaces.dotted import name_arms
from eigensweep.search_spaces.errors import UnknownMetricError, UnreadableSpecError, shorten
from eigensweep.search_spaces.labels import is_number
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.schemas import AnswerModel, Metric
from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.journal import budget_of
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.service.record.views.overviews import list_tries
from eigensweep.service.record.views.queries import Queries
from eigensweep.tasks import TASKS


class Side(AnswerModel):
    """One of the trials that are compared."""

    name: str = Field(description="What was asked for")
    chosen: str = Field(description="How the trial was found")
    experiment: str
    experiment_name: str
    trial: int
    arm: str
    state: str
    hash: str | None = Field(
        description="Content hash: it covers settings and the versions of model, task and trainer"
    )
    params: dict[str, Scalar]
    steps: int = Field(description="Optimizer steps of its budget")
    seeds: list[int] = Field(description="Seeds with a result")
    metric: Metric
    baseline: float | None = Field(
        description="What a memoryless model scores on the metric, on validation data"
    )
    test_baseline: float | None = Field(description="The same on test data")
    valid: Summary | None = Field(description="On validation data, at the selected step")
    test: Summary | None = Field(description="On test data, at the same step")


class Comparison(AnswerModel):
    """Every pair of the sides, with all that is needed to cite it."""

    method: str = Field(description="The test that was used")
    comparisons: dict[Split, int] = Field(description="Pairs over which p-values are corrected")
    smallest: float | None = Field(description="The smallest difference of interest, if one came")
    version: str = Field(description="Version of Eigensweep that compared")
    sides: list[Side]
    pairs: list[Pair]


def compare(
    record: Queries,
    names: Sequence[str],
    metric: str | None,
    version: str,
    smallest: float | None = None,
) -> Comparison:
    """Return the comparison of every pair of what is named.

    A name is EXPERIMENT/NUMBER for a trial, EXPERIMENT/ARM for the arm's best trial by validation,
    or EXPERIMENT for that of all arms. `metric` is the one that is compared, by default what each
    experiment ranks by. Sides that are shown to differ by no more than `smallest` are equivalent.

    Raises:
        NotFoundError: if there is no such experiment, trial or arm.
        ConflictError: if no trial of it has finished.
        UnknownMetricError: if the task has no such metric.
        UnreadableSpecError: if a metric is named, and the task is not known here.
    """
    found = [_find(record, name, metric) for name in names]
    counts, pairs = compare_all([subject for _, subject in found], smallest)
    return Comparison(
        method=TEST,
        comparisons=counts,
        smallest=smallest,
        version=version,
        sides=[side for side, _ in found],
        pairs=pairs,
    )


def _find(record: Queries, name: str, metric: str | None) -> tuple[Side, Subject]:
    id, slash, part = name.partition("/")
    experiment = record.row(id)
    if is_number(part):
        trial, chosen = record.trial(id, int(part)).trial, "named"
    else:
        arm = part if slash else None
        check_arm(experiment, arm)
        first = record.trials(id, arm=arm, sort="value", limit=1)
        if not first or first[0].trial.rank == UNRANKED:
            where = f"arm '{arm}' of experiment '{id}'" if arm else f"experiment '{id}'"
            raise ConflictError(
                f"no trial of {where} has finished with a value, so there is none to compare"
            )
        trial = first[0].trial
        chosen = f"best {'of the arm' if arm else 'of the experiment'} on validation data"
    return _describe_side(name, chosen, experiment, trial, metric)


def check_arm(experiment: ExperimentRow, arm: str | None) -> None:
    """Refuse an arm that an experiment has not.

    Raises:
        NotFoundError: if there is none of this name.
    """
    arms = name_arms(experiment.spec)
    if arm is not None and arm not in arms:
        raise NotFoundError(
            f"experiment '{experiment.id}' has no arm '{arm}'; its arms are {', '.join(arms)}; "
            f"a trial is written {experiment.id}/NUMBER"
        )


def _describe_side(
    name: str, chosen: str, experiment: ExperimentRow, trial: TrialRow, metric: str | None
) -> tuple[Side, Subject]:
    config = trial.counted_config
    task = config.get("task") or experiment.spec["task"]
    measured, baseline = find_metric(experiment, task, metric)
    result = Result.from_dict(trial.result or {})
    cpus = float(experiment.spec.get("resources", {}).get("cpus", 1.0))
    subject = Subject(
        name=name,
        experiment=experiment.id,
        trial=trial.number,
        state=trial.counted_state,
        steps=budget_of(config) or trial.steps,
        metric=measured,
        baselines={"valid": baseline, "test": find_baseline_on_test(task, measured.name, baseline)},
        task=task,
        values={
            "valid": _take(result.by_replicate, "valid", measured.name, experiment.metric),
            "test": _take(result.by_replicate, "test", measured.name, experiment.metric),
        },
        core_hours=result.seconds * cpus / 3600 / result.replicates if result.seconds else None,
    )
    side = Side.made_of(
        trial,
        name=name,
        chosen=chosen,
        experiment=experiment.id,
        experiment_name=experiment.name,
        trial=trial.number,
        state=subject.state,
        steps=subject.steps,
        hash=trial.config_hash,
        seeds=subject.seeds,
        metric=measured,
        baseline=baseline,
        test_baseline=subject.baselines["test"],
        valid=subject.summarize("valid"),
        test=subject.summarize("test"),
    )
    return side, subject


def find_metric(
    experiment: ExperimentRow, task: Mapping[str, Any], name: str | None
) -> tuple[Metric, float | None]:
    """Return the metric that is compared, and its baseline if that follows from the config."""
    if name is None or name == experiment.metric:
        return Metric.made_of(experiment, name=experiment.metric), experiment.baseline
    try:
        config = TASKS[task["name"]].Config.model_validate(task)
    except (KeyError, ValidationError) as error:
        words = f"'{task['name']}' is not installed here, or had other fields than now"
        message = f"nothing is known of the metric '{shorten(name)}': the task {words}"
        raise UnreadableSpecError(message) from error
    known = [metric.name for metric in config.metrics]
    if name not in known:
        message = f"{config.name} has no metric '{name}'; it has {', '.join(known)}"
        raise UnknownMetricError("metric", message, got=name, available=known)
    # Where the search varies the task, the experiment has no baseline, though its own task has one.
    varies = experiment.baseline is None and experiment.metric in config.baselines
    metric = Metric.made_of(config.find_metric(name))
    return metric, None if varies else config.baselines.get(name)


def find_baseline_on_test(
    task: Mapping[str, Any], metric: str, otherwise: float | None
) -> float | None:
    """Return the baseline of a metric on test data; `otherwise` if its task is not known here.

    None if there is none on validation data either, since trials learn different tasks. A task that
    was stored may be of another version, which had other fields.
    """
    if otherwise is None:
        return None
    try:
        config = TASKS[task["name"]].Config.model_validate(task)
    except (KeyError, ValidationError):
        return otherwise
    return config.baselines_on("test").get(metric, otherwise)


def _take(
    replicates: Sequence[ReplicateResult], split: Split, metric: str, objective: str
) -> dict[int, float]:
    """Return a metric's value for each seed that has one."""
    taken = {}
    for each in replicates:
        scores: Metrics = each.valid if split == "valid" else each.test
        value = scores.get(metric)
        if split == "valid" and metric == objective:
            value = each.value
        if value is not None:
            taken[each.seed] = value
    return taken


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
    found = [_find_search(record, name, metric) for name in names]
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


def _find_search(record: Queries, name: str, metric: str | None) -> tuning.Searched:
    id, _, part = name.partition("/")
    experiment = record.row(id)
    task = dict(experiment.spec["task"])
    measured, baseline = find_metric(experiment, task, metric)
    on_test = find_baseline_on_test(task, measured.name, baseline)
    spec = ExperimentSpec.from_stored(experiment.spec)
    tries: list[tuning.Try] = []
    reason = "it is one trial, not a search"
    if not is_number(part):
        check_arm(experiment, part or None)
        tries, reason = list_tries(record, id, part or None, spec.replicates), ""
    return tuning.make_searched(
        name,
        experiment.name,
        spec,
        tries,
        measured,
        Metric.made_of(experiment, name=experiment.metric),
        task,
        on_test,
        reason,
    )

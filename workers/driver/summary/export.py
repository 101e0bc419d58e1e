"""An experiment as a study in a journal of Optuna's, for people with Optuna's tools."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.trial import FrozenTrial, TrialState

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.results.pareto import read_goals
from eigensweep.results.ranking import OBJECTIVE, RANKED
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.search.samplers import quiet
from eigensweep.workers.driver.search.study import DIRECTIONS, STATES, make_distribution

Times = Mapping[int, tuple[float | None, float | None]]
"""When each trial began and ended, in seconds since 1970, by its number."""


class _Lines(BaseJournalBackend):
    """The lines of a journal, in memory: a file would be synced for each trial."""

    def __init__(self) -> None:
        self.logs: list[dict[str, object]] = []

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, object]]:
        yield from self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        self.logs += logs


def export_study(
    experiment: str, spec: ExperimentSpec, entries: Iterable[TrialEntry], times: Times
) -> bytes:
    """Return the content of a file that `optuna-dashboard` and `JournalStorage` open.

    It holds one study with all arms. A trial's arm, outcome and number are attributes, and its
    scores at the rungs are intermediate values, where there is one objective. A parameter that is
    not the same in all arms has the arm's name before its own. Points that no config accepts are
    left out. A trial that was opened again counts with its result so far. One that took over
    another in population-based training has its `lineage` and no parameters: its result is not that
    of the ones that it began with. Times are in the time zone of this process.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # its lines are not in the service's form
    lines, goals = _Lines(), spec.goals()
    study = optuna.create_study(
        study_name=f"{spec.name} ({experiment})",
        storage=JournalStorage(lines),
        directions=[DIRECTIONS[goal.better] for goal in goals],
    )
    with quiet():
        study.set_metric_names([goal.name for goal in goals])
    study.set_user_attr("experiment", experiment)
    axes = _name_axes(spec.space())
    names = [goal.name for goal in goals]
    for entry in entries:
        if entry.state != "invalid":
            study.add_trial(_make_trial(entry, axes[entry.arm], names, times))
    return b"".join(json.dumps(log, separators=(",", ":")).encode() + b"\n" for log in lines.logs)


def _name_axes(space: Space) -> dict[str, dict[str, tuple[str, BaseDistribution]]]:
    """Return name and description of each parameter, by arm and path."""
    found = {
        arm: {path: make_distribution(axis) for path, axis in space.axes(arm).items()}
        for arm in space.arms
    }

    def name(arm: str, path: str) -> str:
        others = (axes[path] for axes in found.values() if path in axes)
        return path if all(other == found[arm][path] for other in others) else f"{arm}:{path}"

    return {
        arm: {path: (name(arm, path), axis) for path, axis in axes.items()}
        for arm, axes in found.items()
    }


def _make_trial(
    entry: TrialEntry,
    axes: Mapping[str, tuple[str, BaseDistribution]],
    goals: list[str],
    times: Times,
) -> FrozenTrial:
    reports = _read_reports(entry, goals[0]) if len(goals) == 1 else {}
    before = entry.earlier if entry.earlier and entry.earlier.state in RANKED else None
    outcome, config = (before.state, before.config) if before else (entry.state, entry.config)
    began, ended = times.get(entry.number, (None, None))
    begun = ended if began is None else began
    state = STATES.get(outcome)  # type: ignore[arg-type]
    if state is None:
        state = TrialState.WAITING if begun is None else TrialState.RUNNING
    values = read_goals(goals, entry.result) if entry.result else [None]
    known = [value for value in values if value is not None and math.isfinite(value)]
    if state == TrialState.COMPLETE and len(known) < len(goals):
        state = TrialState.FAIL
    if state == TrialState.PRUNED:
        known = [*reports.values()][-1:]
    attrs: dict[str, object] = {"arm": entry.arm, "outcome": outcome, "number": entry.number}
    if config:
        attrs["seed"], attrs["replicates"] = config["seed"], config["replicates"]
    if entry.error:
        attrs["error"] = entry.error.strip().rsplit("\n", 1)[-1]
    if before:
        attrs["reopened_for"] = before.reason
    if entry.lineage:
        attrs["lineage"] = [each.to_dict() for each in entry.lineage]
    of_result = {} if entry.lineage else {p: v for p, v in entry.params.items() if p in axes}
    start, length = datetime.fromtimestamp(begun or 0), max(0.0, (ended or 0) - (begun or 0))
    return FrozenTrial(
        number=-1,  # a study numbers its trials itself
        trial_id=-1,
        state=state,
        value=None,
        values=known if known and state in (TrialState.COMPLETE, TrialState.PRUNED) else None,
        datetime_start=None if state == TrialState.WAITING else start,
        # By its length, as the hour of a change of the clocks comes twice.
        datetime_complete=start + timedelta(seconds=length) if state.is_finished() else None,
        params={axes[path][0]: value for path, value in of_result.items()},
        distributions={axes[path][0]: axes[path][1] for path in of_result},
        user_attrs=attrs,
        system_attrs={},
        intermediate_values=reports,
    )


def _read_reports(entry: TrialEntry, metric: str) -> dict[int, float]:
    """Return what was scored on validation data at each rung, in the order of steps."""
    scored = (
        (step, told.get(f"valid/{metric}", told.get(OBJECTIVE)))
        for step, told in sorted(entry.reports.items())
    )
    return {step: value for step, value in scored if value is not None}

"""Summaries of many trials: by arm, and as points of the space.

Runs in the service's process. Every answer is small, whatever the number of trials.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import BigInteger, Row, case, cast, func, or_, select
from sqlalchemy.orm import Session, aliased

from eigensweep.protocol.messages import Params
from eigensweep.protocol.states import OUTCOMES
from eigensweep.results.importance import Scored
from eigensweep.results.ranking import UNRANKED
from eigensweep.results.seeds import cut_seeds
from eigensweep.results.trial_result import Result
from eigensweep.results.tuning import Try
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow, ReportRow, TrialRow
from eigensweep.service.record.views.queries import (
    READ_AT_ONCE,
    TRIAL_SORTS,
    Queries,
    get_experiment,
    require_experiment,
)

BY_VALUE = TRIAL_SORTS["value"]
"""The columns of the ranking."""
MIXER, PRIME = 618_034, 1_000_003
"""A number times the first, modulo the second, is spread evenly, and in time with no grid."""


@dataclass
class ArmRecord:
    """The trials of one arm."""

    name: str
    states: dict[str, int] = field(default_factory=dict)
    """How many trials are in each state."""
    best: TrialRow | None = None
    """The first in the ranking; None while none is ranked."""


@dataclass(frozen=True)
class RacerRecord:
    """A trial with a result, for a race."""

    number: int
    arm: str
    params: Params
    state: str
    """How it ended; for a reopened trial, how it had ended before."""
    replicates: int
    """Seeds that it has, or was reopened for."""
    result: Result
    error: str | None


@database.reading
def list_arms(queries: Queries, session: Session, id: str) -> tuple[ExperimentRow, list[ArmRecord]]:
    """Return an experiment and its arms, in the order of their first trials.

    Raises:
        ExperimentNotFoundError: if there is none of this id.
    """
    experiment = get_experiment(session, id)
    counted = (
        select(TrialRow.arm, TrialRow.state, func.count(), func.min(TrialRow.number))
        .where(TrialRow.experiment_id == id)
        .group_by(TrialRow.arm, TrialRow.state)
    )
    arms: dict[str, ArmRecord] = {}
    for arm, state, trials, _ in sorted(session.execute(counted), key=lambda row: row[3]):
        arms.setdefault(arm, ArmRecord(arm)).states[state] = trials
    for trial in _find_leaders(session, id, 1):
        arms[trial.arm].best = trial
    return experiment, list(arms.values())


@database.reading
def list_leaders(queries: Queries, session: Session, id: str, each: int) -> list[TrialRow]:
    """Return the best trials of every arm, then the first trials of every arm that train now.

    Up to `each` of both.
    """
    training = select(TrialRow).where(TrialRow.experiment_id == id, TrialRow.state == "running")
    seen: dict[str, list[TrialRow]] = {}
    for trial in session.scalars(training.order_by(TrialRow.number).limit(50 * each)):
        seen.setdefault(trial.arm, []).append(trial)
    leaders = _find_leaders(session, id, each)  # one that trains more seeds is among both
    begun = (trial for trials in seen.values() for trial in trials[:each])
    return [*leaders, *(trial for trial in begun if trial not in leaders)]


@database.reading
def list_reports(
    queries: Queries, session: Session, id: str, numbers: Sequence[int]
) -> dict[int, list[ReportRow]]:
    """Return the rung reports of some trials, in order of their steps."""
    query = (
        select(ReportRow)
        .where(ReportRow.experiment_id == id, ReportRow.number.in_(numbers))
        .order_by(ReportRow.number, ReportRow.step)
    )
    found: dict[int, list[ReportRow]] = {number: [] for number in numbers}
    for report in session.scalars(query):
        found[report.number].append(report)
    return found


@database.reading
def list_points(
    queries: Queries, session: Session, id: str, most: int
) -> tuple[int, Sequence[Row[int, str, str, float | None, Params]]]:
    """Return how many trials have ended with a value; and number, arm, state, value and params.

    The latter are of about `most` of them. A trial that was opened again has its value of before.

    Half of those are the best ones, the others are spread evenly over the rest. That is not every
    fourth one, say: where arms take turns, it would leave an arm out. Trials with a lineage are
    left out: their value is not that of one point.
    """
    ended = (
        TrialRow.experiment_id == id,
        or_(TrialRow.state.in_(OUTCOMES), TrialRow.earlier.is_not(None)),
        TrialRow.value.is_not(None),
        TrialRow.lineage.is_(None),
    )
    require_experiment(session, id)
    count = session.scalars(select(func.count()).where(*ended)).one()
    state = case((TrialRow.earlier.is_not(None), "completed"), else_=TrialRow.state).label("state")
    chosen = select(TrialRow.number, TrialRow.arm, state, TrialRow.value, TrialRow.params)
    chosen = chosen.where(*ended).order_by(TrialRow.number)
    if count > most:
        best = select(TrialRow.number).where(TrialRow.experiment_id == id, TrialRow.rank < UNRANKED)
        best = best.order_by(*BY_VALUE).limit(most // 2)
        stride = -(-2 * count // most)
        mixed = cast(TrialRow.number, BigInteger) * MIXER % PRIME
        chosen = chosen.where(or_(mixed < PRIME // stride, TrialRow.number.in_(best)))
    return count, session.execute(chosen).all()


@database.reading
def list_racers(queries: Queries, session: Session, id: str) -> list[RacerRecord]:
    """Return the trials that a race is about: those with values, also while they train more seeds.

    Diverged trials are among them, as they took time.
    """
    known = or_(TrialRow.rank < UNRANKED, TrialRow.state == "diverged")
    chosen = select(TrialRow).where(TrialRow.experiment_id == id, known)
    return [
        RacerRecord(
            number=trial.number,
            arm=trial.arm,
            params=trial.params,
            state=trial.counted_state,
            replicates=trial.replicates or 1,
            result=Result.from_dict(trial.result or {}),
            error=trial.error,
        )
        for trial in session.scalars(chosen.order_by(TrialRow.number))
    ]


@database.reading
def list_tries(
    queries: Queries, session: Session, id: str, arm: str | None, replicates: int
) -> list[Try]:
    """Return what each trial of an experiment, or of an arm of it, came to and cost.

    Seeds that a race has added to the search's `replicates` are left out: means over other seeds
    cannot be compared. Open trials are among them; one that is open once more counts with its
    result of before. Results are large, so only some are in memory at a time.
    """
    counted = case((TrialRow.rank < UNRANKED, "completed"), else_=TrialRow.state)
    columns = (TrialRow.number, counted, TrialRow.value, TrialRow.result)
    chosen = select(
        *columns,
        *(TrialRow.cpu_seconds, TrialRow.gpu_seconds),
        *(TrialRow.lineage.is_not(None), TrialRow.earlier.is_not(None)),
    )
    chosen = chosen.where(TrialRow.experiment_id == id)
    if arm is not None:
        chosen = chosen.where(TrialRow.arm == arm)
    query = chosen.order_by(TrialRow.number).execution_options(yield_per=READ_AT_ONCE)

    tries = []
    for number, state, value, result, cpu, gpu, is_of_many, is_open_again in session.execute(query):
        found: Mapping[str, Any] = result or {}
        if is_open_again:  # the result says what it took
            cpu = gpu = 0.0
        if len(found.get("by_replicate") or ()) > replicates:
            first = cut_seeds(Result.from_dict(found), replicates)
            found, value, cpu, gpu = first.to_dict(), first.value, 0.0, 0.0
            state = first.outcome or state  # an added seed that diverged is left out, too
        test = {name: v for name, v in (found.get("test") or {}).items() if v is not None}
        seconds = found.get("seconds") or 0.0
        tries.append(Try(number, state, value, test, seconds, cpu, gpu, is_of_many))
    return tries


@database.reading
def list_finished(queries: Queries, session: Session, id: str) -> dict[str, list[Scored]]:
    """Return point and value of each ranked trial, by arm, in the order of their numbers.

    Trials with a lineage are left out: their value is not that of one point.
    """
    chosen = (
        select(TrialRow.arm, TrialRow.params, TrialRow.value)
        .where(TrialRow.experiment_id == id, TrialRow.rank < UNRANKED, TrialRow.lineage.is_(None))
        .order_by(TrialRow.number)
    )
    found: dict[str, list[Scored]] = {}
    for arm, params, value in session.execute(chosen):
        if value is not None:
            found.setdefault(arm, []).append(Scored(params, value))
    return found


@database.reading
def list_lineages(
    queries: Queries, session: Session, id: str
) -> list[tuple[int, list[dict[str, object]]]]:
    """Return number and lineage of each trial that population-based training has replaced."""
    chosen = (
        select(TrialRow.number, TrialRow.lineage)
        .where(TrialRow.experiment_id == id, TrialRow.lineage.is_not(None))
        .order_by(TrialRow.number)
    )
    return [(number, lineage or []) for number, lineage in session.execute(chosen)]


def _find_leaders(session: Session, id: str, each: int) -> list[TrialRow]:
    place = func.row_number().over(partition_by=TrialRow.arm, order_by=BY_VALUE)
    ranked = (
        select(TrialRow.number, place.label("place"))
        .where(TrialRow.experiment_id == id, TrialRow.rank < UNRANKED)
        .subquery()
    )
    leader = aliased(TrialRow)
    query = (
        select(leader)
        .join(ranked, ranked.c.number == leader.number)
        .where(leader.experiment_id == id, ranked.c.place <= each)
        .order_by(leader.tier, leader.rank, leader.number)
    )
    return list(session.scalars(query))

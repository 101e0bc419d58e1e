"""What there is to see of many trials at once: arm by arm, and as points of a space.

Runs in the service's process. Every answer is small, whatever the number of trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Row, func, or_, select
from sqlalchemy.orm import Session, aliased

from eigensweep.results.importance import Scored
from eigensweep.results.ranking import RANKED, UNRANKED
from eigensweep.results.tuning import Try
from eigensweep.service.record import database
from eigensweep.service.record.queries import (
    READ_AT_ONCE,
    TRIAL_SORTS,
    Queries,
    get_experiment,
    require_experiment,
)
from eigensweep.service.record.tables import Experiment, Report, Trial
from eigensweep.workers.shared.messages import Json, Params, Result
from eigensweep.workers.shared.states import OUTCOMES

BY_VALUE = TRIAL_SORTS["value"]
"""The columns of the ranking."""


@dataclass
class ArmRecord:
    """The trials of one arm."""

    name: str
    states: dict[str, int] = field(default_factory=dict)
    """How many trials are in each state."""
    best: Trial | None = None
    """The first in the ranking; None while none is ranked."""


@dataclass(frozen=True)
class RacerRecord:
    """A trial with a result, as a race sees it."""

    number: int
    arm: str
    params: Params
    state: str
    """How it ended; of one that was opened again, how it had ended before."""
    replicates: int
    """Seeds that it has, or that it was opened again for."""
    result: Result
    error: str | None


@database.reading
def list_arms(queries: Queries, session: Session, id: str) -> tuple[Experiment, list[ArmRecord]]:
    """Return an experiment and its arms, in the order of their first trials.

    Raises:
        ExperimentNotFoundError: if there is none of this id.
    """
    experiment = get_experiment(session, id)
    counted = (
        select(Trial.arm, Trial.state, func.count(), func.min(Trial.number))
        .where(Trial.experiment_id == id)
        .group_by(Trial.arm, Trial.state)
    )
    arms: dict[str, ArmRecord] = {}
    for arm, state, trials, _ in sorted(session.execute(counted), key=lambda row: row[3]):
        arms.setdefault(arm, ArmRecord(arm)).states[state] = trials
    for trial in _find_leaders(session, id, 1):
        arms[trial.arm].best = trial
    return experiment, list(arms.values())


@database.reading
def list_leaders(queries: Queries, session: Session, id: str, each: int) -> list[Trial]:
    """Return the best trials of every arm, and of those that train the first ones of every arm.

    There are up to `each` of both.
    """
    training = select(Trial).where(Trial.experiment_id == id, Trial.state == "running")
    seen: dict[str, list[Trial]] = {}
    for trial in session.scalars(training.order_by(Trial.number).limit(50 * each)):
        seen.setdefault(trial.arm, []).append(trial)
    return [
        *_find_leaders(session, id, each),
        *(trial for trials in seen.values() for trial in trials[:each]),
    ]


@database.reading
def list_reports(
    queries: Queries, session: Session, id: str, numbers: Sequence[int]
) -> dict[int, list[Report]]:
    """Return the rung reports of some trials, in order of their steps."""
    query = (
        select(Report)
        .where(Report.experiment_id == id, Report.number.in_(numbers))
        .order_by(Report.number, Report.step)
    )
    found: dict[int, list[Report]] = {number: [] for number in numbers}
    for report in session.scalars(query):
        found[report.number].append(report)
    return found


@database.reading
def list_points(
    queries: Queries, session: Session, id: str, most: int
) -> tuple[int, Sequence[Row[int, str, str, float | None, Params]]]:
    """Return how many trials have ended with a value; and number, arm, state, value and params.

    The latter are of about `most` of them.

    Half of those are the best ones, the others are spread evenly over the rest. Trials with a
    lineage are left out: their value is not that of one point.
    """
    ended = (
        Trial.experiment_id == id,
        Trial.state.in_(OUTCOMES),
        Trial.value.is_not(None),
        Trial.lineage.is_(None),
    )
    require_experiment(session, id)
    count = session.scalars(select(func.count()).where(*ended)).one()
    chosen = select(Trial.number, Trial.arm, Trial.state, Trial.value, Trial.params)
    chosen = chosen.where(*ended).order_by(Trial.number)
    if count > most:
        best = select(Trial.number).where(Trial.experiment_id == id, Trial.rank < UNRANKED)
        best = best.order_by(*BY_VALUE).limit(most // 2)
        stride = -(-2 * count // most)
        chosen = chosen.where(or_(Trial.number % stride == 0, Trial.number.in_(best)))
    return count, session.execute(chosen).all()


@database.reading
def list_racers(queries: Queries, session: Session, id: str) -> list[RacerRecord]:
    """Return the trials that a race is about: those with values, also while they train more seeds.

    Those that diverged are among them, as they took time.
    """
    known = or_(Trial.rank < UNRANKED, Trial.state == "diverged")
    chosen = select(Trial).where(Trial.experiment_id == id, known)
    return [
        RacerRecord(
            number=trial.number,
            arm=trial.arm,
            params=trial.params,
            state=trial.earlier["state"] if trial.earlier else trial.state,
            replicates=trial.replicates or 1,
            result=Result.from_dict(trial.result or {}),
            error=trial.error,
        )
        for trial in session.scalars(chosen.order_by(Trial.number))
    ]


@database.reading
def list_tries(queries: Queries, session: Session, id: str, arm: str | None) -> list[Try]:
    """Return what each trial of an experiment, or of an arm of it, came to and cost.

    Those that have not ended are among them. Results are large, so only some are in memory at a
    time.
    """
    columns = (Trial.number, Trial.state, Trial.value, Trial.result)
    chosen = select(*columns, Trial.cpu_seconds, Trial.gpu_seconds, Trial.lineage.is_not(None))
    chosen = chosen.where(Trial.experiment_id == id)
    if arm is not None:
        chosen = chosen.where(Trial.arm == arm)
    query = chosen.order_by(Trial.number).execution_options(yield_per=READ_AT_ONCE)

    def read(result: Json | None) -> tuple[dict[str, float], float]:
        found = result or {}
        test = {name: v for name, v in (found.get("test") or {}).items() if v is not None}
        return test, found.get("seconds") or 0.0

    return [
        Try(number, state, value, *read(result), cpu, gpu, is_of_many)
        for number, state, value, result, cpu, gpu, is_of_many in session.execute(query)
    ]


@database.reading
def list_finished(queries: Queries, session: Session, id: str) -> dict[str, list[Scored]]:
    """Return point and value of each ranked trial, by arm, in the order of their numbers.

    Trials with a lineage are left out: their value is not that of one point.
    """
    chosen = (
        select(Trial.arm, Trial.params, Trial.value)
        .where(Trial.experiment_id == id, Trial.state.in_(RANKED), Trial.lineage.is_(None))
        .order_by(Trial.number)
    )
    found: dict[str, list[Scored]] = {}
    for arm, params, value in session.execute(chosen):
        if value is not None:
            found.setdefault(arm, []).append(Scored(params, value))
    return found


@database.reading
def list_lineages(queries: Queries, session: Session, id: str) -> list[tuple[int, list[Json]]]:
    """Return number and lineage of each trial that population-based training has replaced."""
    chosen = (
        select(Trial.number, Trial.lineage)
        .where(Trial.experiment_id == id, Trial.lineage.is_not(None))
        .order_by(Trial.number)
    )
    return [(number, lineage or []) for number, lineage in session.execute(chosen)]


def _find_leaders(session: Session, id: str, each: int) -> list[Trial]:
    place = func.row_number().over(partition_by=Trial.arm, order_by=BY_VALUE)
    ranked = (
        select(Trial.number, place.label("place"))
        .where(Trial.experiment_id == id, Trial.rank < UNRANKED)
        .subquery()
    )
    leader = aliased(Trial)
    query = (
        select(leader)
        .join(ranked, ranked.c.number == leader.number)
        .where(leader.experiment_id == id, ranked.c.place <= each)
        .order_by(leader.tier, leader.rank, leader.number)
    )
    return list(session.scalars(query))

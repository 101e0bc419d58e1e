"""Which trials use the cluster, and which experiments wait for it, each read by an index.

Runs in the service's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from eigensweep.protocol.states import DRIVEN, ENDED, EXPERIMENT_STATES
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import AttemptRow, ExperimentRow, TrialRow
from eigensweep.service.record.views.counts import IS_NEWEST, Trainer, find_trainers
from eigensweep.service.record.views.queries import Queries, count_states

WAITING = tuple(s for s in EXPERIMENT_STATES if s not in {*DRIVEN, *ENDED, "deleting"})
"""The states of experiments that are not over and have no driver."""


@dataclass(frozen=True)
class Use:
    """A trial that has a process, with its experiment."""

    trial: TrialRow
    attempt: AttemptRow | None
    """None: it has no process yet."""
    experiment: ExperimentRow


@dataclass(frozen=True)
class Activity:
    """Running trials and open experiments."""

    uses: list[Use]
    running: int
    """How many trials have a process; `uses` may have fewer."""
    experiments: list[tuple[ExperimentRow, int]]
    """The experiments with a driver, then the first ones without, each with its number of waiting
    trials.

    They come in the order of their priorities, without their specs."""
    waiting: int
    """How many open experiments have no driver; `experiments` may have fewer."""
    trainers: list[Trainer]
    """The processes that train."""


@database.reading
def read_activity(queries: Queries, session: Session, uses: int, waiting: int) -> Activity:
    """Return at most so many trials that have a process, and experiments that are not over.

    Of these all that are driven, and at most `waiting` of the others.
    """
    training = (
        select(TrialRow, AttemptRow, ExperimentRow)
        .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
        .outerjoin(AttemptRow, IS_NEWEST)
        .where(TrialRow.state == "running")
        .options(
            defer(TrialRow.config, raiseload=True),
            defer(TrialRow.result, raiseload=True),
            defer(ExperimentRow.spec, raiseload=True),
        )
        .order_by(TrialRow.experiment_id, TrialRow.number)
        .limit(uses)
    )
    running = select(func.count()).select_from(TrialRow).where(TrialRow.state == "running")
    heads = (
        select(ExperimentRow)
        .options(defer(ExperimentRow.spec, raiseload=True))
        .order_by(ExperimentRow.priority.desc(), ExperimentRow.created_at, ExperimentRow.id)
    )
    others = ExperimentRow.state.in_(WAITING)
    rows = [
        *session.scalars(heads.where(ExperimentRow.state.in_(DRIVEN))),
        *session.scalars(heads.where(others).limit(waiting)),
    ]
    counts = count_states(session, [row.id for row in rows])
    return Activity(
        [Use(*row) for row in session.execute(training)],
        session.scalars(running).one(),
        [(r, c.trials if (c := counts[r.id].get("waiting")) else 0) for r in rows],
        session.scalars(select(func.count()).select_from(ExperimentRow).where(others)).one(),
        find_trainers(session),
    )

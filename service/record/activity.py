"""Who uses the cluster, and who waits for it, as the record knows it: by an index each.

Runs in the service's process.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from eigensweep.service.record import database
from eigensweep.service.record.queries import count_states
from eigensweep.service.record.tables import Attempt, Experiment, Trial
from eigensweep.workers.shared.states import DRIVEN, ENDED, EXPERIMENT_STATES

WAITING = tuple(s for s in EXPERIMENT_STATES if s not in {*DRIVEN, *ENDED, "deleting"})
"""The states of experiments that are not over and have no driver."""


@dataclass(frozen=True)
class Use:
    """A trial that has a process, and the experiment that it is of."""

    trial: Trial
    attempt: Attempt | None
    """None: it has no process yet."""
    experiment: Experiment


@dataclass(frozen=True)
class Activity:
    """What runs and what waits."""

    uses: list[Use]
    running: int
    """How many trials have a process; `uses` may have fewer."""
    experiments: list[tuple[Experiment, int]]
    """Those that are driven, then the first of those that are not, each with how many trials wait.

    They come in the order of their priorities, without their specs."""
    waiting: int
    """How many are not over and not driven; `experiments` may have fewer."""


def read_activity(url: str, uses: int, waiting: int) -> Activity:
    """Return at most so many trials that have a process, and experiments that are not over.

    Of these all that are driven, and at most `waiting` of the others.
    """
    return database.read(url, partial(_read_activity, uses, waiting))


def _read_activity(uses: int, waiting: int, session: Session) -> Activity:
    training = (
        select(Trial, Attempt, Experiment)
        .join(Experiment, Experiment.id == Trial.experiment_id)
        .outerjoin(
            Attempt,
            (Attempt.experiment_id == Trial.experiment_id)
            & (Attempt.number == Trial.number)
            & (Attempt.attempt == Trial.attempt),
        )
        .where(Trial.state == "running")
        .options(
            defer(Trial.config, raiseload=True),
            defer(Trial.result, raiseload=True),
            defer(Experiment.spec, raiseload=True),
        )
        .order_by(Trial.experiment_id, Trial.number)
        .limit(uses)
    )
    running = select(func.count()).select_from(Trial).where(Trial.state == "running")
    heads = (
        select(Experiment)
        .options(defer(Experiment.spec, raiseload=True))
        .order_by(Experiment.priority.desc(), Experiment.created_at, Experiment.id)
    )
    others = Experiment.state.in_(WAITING)
    rows = [
        *session.scalars(heads.where(Experiment.state.in_(DRIVEN))),
        *session.scalars(heads.where(others).limit(waiting)),
    ]
    counts = count_states(session, [row.id for row in rows])
    return Activity(
        [Use(*row) for row in session.execute(training)],
        session.scalars(running).one(),
        [(r, c.trials if (c := counts[r.id].get("waiting")) else 0) for r in rows],
        session.scalars(select(func.count()).select_from(Experiment).where(others)).one(),
    )

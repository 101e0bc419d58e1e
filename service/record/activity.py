"""Who uses the cluster, and who waits for it, as the record knows it: by an index each.

Runs in the service's process.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, defer

from eigensweep.service.record import database
from eigensweep.service.record.tables import Attempt, Experiment, Trial
from eigensweep.workers.shared.states import ENDED, EXPERIMENT_STATES

OPEN = tuple(state for state in EXPERIMENT_STATES if state not in {*ENDED, "deleting"})
"""The states of experiments that are not over."""


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
    """Those that are not over, in the order of the queue, each with how many trials wait."""


def read_activity(url: str, limit: int) -> Activity:
    """Return at most `limit` trials that have a process, and experiments that are not over."""

    def work(session: Session) -> Activity:
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
            .limit(limit)
        )
        running = select(func.count()).select_from(Trial).where(Trial.state == "running")
        waiting = (
            select(Experiment, func.count(Trial.number))
            .outerjoin(Trial, (Trial.experiment_id == Experiment.id) & (Trial.state == "waiting"))
            .where(Experiment.state.in_(OPEN))
            .group_by(Experiment.id)
            .order_by(Experiment.priority.desc(), Experiment.created_at)
            .limit(limit)
        )
        return Activity(
            [Use(*row) for row in session.execute(training)],
            session.scalars(running).one(),
            [(row, count) for row, count in session.execute(waiting)],
        )

    return database.read(url, work)

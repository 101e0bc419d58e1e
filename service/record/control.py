"""What people do to experiments that are there: pause, resume, cancel, retry.

Each is one transaction with its events. What the state of an experiment does not allow is refused.
Runs in the service's process.
"""

from __future__ import annotations

import time

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from eigensweep.service.record import database
from eigensweep.service.record.errors import (
    ExperimentNotFoundError,
    NothingToDoError,
    WrongStateError,
)
from eigensweep.service.record.journal import (
    end_experiment,
    move_experiment,
    reopen_experiment,
    reopen_trial,
    spent_seconds,
)
from eigensweep.service.record.queries import Queries
from eigensweep.service.record.tables import Experiment, Trial
from eigensweep.workers.shared.states import ACTIONS, DONE, DRIVEN, RANKED, Action


class Control(Queries):
    """The part of the record through which people control what runs.

    Every method raises ExperimentNotFoundError if there is none of this id, and WrongStateError if
    its state does not allow the action.
    """

    def cancel(self, id: str) -> None:
        """Cancel an experiment without a driver at once; ask the driver of another one to stop.

        Once more changes nothing.
        """

        def work(session: Session) -> None:
            experiment = lock(session, id)
            if was_done(experiment, "cancel"):
                return
            has_driver = experiment.state in DRIVEN
            move_experiment(session, experiment, "cancelling")
            if not has_driver:
                end_experiment(session, experiment, "cancelled", None)
                # One that never began is nothing that MLflow would have to learn of.
                experiment.tracked = experiment.generation == 0

        database.write(self.url, work)

    def pause(self, id: str) -> None:
        """Pause a queued experiment at once; ask the driver of another one to pause its trials.

        They commit what they have, and give their places back. Once more changes nothing.
        """

        def work(session: Session) -> None:
            experiment = lock(session, id)
            if not was_done(experiment, "pause"):
                is_queued = experiment.state == "queued"
                move_experiment(session, experiment, "paused" if is_queued else "pausing")

        database.write(self.url, work)

    def resume(self, id: str) -> None:
        """Queue a paused experiment again, at the place of its age and priority."""

        def work(session: Session) -> None:
            experiment = lock(session, id)
            if not was_done(experiment, "resume"):
                move_experiment(session, experiment, "queued")

        database.write(self.url, work)

    def retry(self, id: str) -> None:
        """Try the failed trials of an experiment again that is over, from their last commits.

        If it was cancelled, that is all, and it ends as cancelled again. If it failed itself, its
        search goes on, too.

        Raises:
            NothingToDoError: if none has failed, or it may not go on.
        """

        def work(session: Session) -> None:
            experiment = lock(session, id)
            was_done(experiment, "retry")
            if experiment.spec.get("scheduler", {}).get("name") == "pbt":
                raise NothingToDoError(
                    f"the trials of experiment {id} trained as one population (scheduler: pbt), so "
                    f"none is tried again by itself; post it again: eigensweep fork {id}"
                )
            _check_time_left(experiment)
            count = _reopen_failed(session, experiment)
            if not count and experiment.state != "failed":
                raise NothingToDoError(
                    f"experiment {id} has no failed trial, so there is nothing to retry"
                )
            experiment.closed = experiment.state == "cancelled"
            words = f"another try of {count} failed trial{'s' * (count != 1)}"
            reopen_experiment(session, experiment, words if count else "another try")

        database.write(self.url, work)


def _reopen_failed(session: Session, experiment: Experiment) -> int:
    """Open the failed trials of an experiment again; return how many there are.

    One that failed when it was trained further is as it was before, with that error. Without the
    error, its driver trains it further again.
    """
    mine = select(Trial).where(
        Trial.experiment_id == experiment.id,
        or_(Trial.state == "failed", Trial.state.in_(RANKED) & Trial.error.is_not(None)),
    )
    found = session.scalars(mine.order_by(Trial.number)).all()
    for trial in found:
        if trial.state == "failed":
            reopen_trial(session, experiment, trial, trial.config or {}, "another try")
        else:
            trial.error = None
    return len(found)


def _check_time_left(experiment: Experiment) -> None:
    limit = experiment.spec.get("limits", {}).get("wall_seconds")
    if limit is not None and spent_seconds(experiment, time.time()) >= limit:
        raise NothingToDoError(
            f"experiment {experiment.id} has used up its limits.wall_seconds ({limit:g}), so "
            "nothing of it can go on"
        )


def lock(session: Session, id: str) -> Experiment:
    """Return an experiment, which nobody else changes until the end of the transaction.

    Raises:
        ExperimentNotFoundError: if there is none of this id.
    """
    experiment = session.scalars(
        select(Experiment).where(Experiment.id == id).with_for_update()
    ).first()
    if experiment is None:
        raise ExperimentNotFoundError(id)
    return experiment


def was_done(experiment: Experiment, action: Action) -> bool:
    """Return whether an action was done before.

    Raises:
        WrongStateError: if it was not, and the state of the experiment does not allow it.
    """
    if experiment.state in DONE[action]:
        return True
    if experiment.state not in ACTIONS[action]:
        raise WrongStateError(experiment.id, experiment.state, action)
    return False

"""Controls experiments on request: pauses, cancels, archives, deletes them, and so on.

Each action is one transaction with its events. An action that the state of the experiment does not
allow is refused. Runs in the service's process.
"""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import Text, cast, delete, select, update

from eigensweep.protocol.states import (
    ACTIONS,
    DONE,
    DRIVEN,
    OPEN_TRIALS,
    PHASES,
    Action,
    name_actions,
)
from eigensweep.results.ranking import RANKED
from eigensweep.service.record.errors import (
    ConflictError,
    ExperimentNotFoundError,
    NotFoundError,
    WrongStateError,
)
from eigensweep.service.record.journal import emit, emit_trial, end_experiment, move_experiment
from eigensweep.service.record.leadership import Leadership
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import EventRow, ExperimentRow, JobRow, TrialRow
from eigensweep.service.record.views.queries import Queries

AT_ONCE: Final = 2_000
"""Rows that are removed in one transaction."""


class Control(Queries):
    """The part of the record that controls experiments.

    Every method raises ExperimentNotFoundError if there is none of this id, and WrongStateError if
    its state does not allow the action.
    """

    leadership: Leadership | None = None
    """Who of several services drives experiments; None: there is only this one."""

    def fence(self, rows: RowSession) -> None:
        """Refuse a transaction of a service that leads no more.

        Raises:
            NotLeadingError: if another service leads.
        """
        if self.leadership is not None:
            self.leadership.require(rows)

    @database.transaction
    def cancel(self, rows: RowSession, id: str) -> None:
        """Cancel an experiment at once if it has no driver, else ask its driver to stop.

        A second call changes nothing.
        """
        experiment = lock(rows, id)
        if was_done(experiment, "cancel"):
            return
        has_driver = experiment.state in DRIVEN
        move_experiment(rows, experiment, "cancelling")
        if not has_driver:
            end_experiment(rows, experiment, "cancelled", None)
            # One that never began is nothing that MLflow would have to learn of.
            experiment.tracked = experiment.generation == 0

    @database.transaction
    def pause(self, rows: RowSession, id: str) -> None:
        """Pause a queued experiment at once; ask the driver of another one to pause its trials.

        The trials commit, and release their slots. A second call changes nothing.
        """
        experiment = lock(rows, id)
        if not was_done(experiment, "pause"):
            is_queued = experiment.state == "queued"
            move_experiment(rows, experiment, "paused" if is_queued else "pausing")

    @database.transaction
    def resume(self, rows: RowSession, id: str) -> None:
        """Queue a paused experiment again, at the place of its age and priority."""
        experiment = lock(rows, id)
        if not was_done(experiment, "resume"):
            move_experiment(rows, experiment, "queued")

    @database.transaction
    def stop_trial(self, rows: RowSession, id: str, number: int) -> None:
        """Ask the driver of an experiment to stop one open trial early; its search goes on.

        A second call changes nothing.

        Raises:
            NotFoundError: if there is no such trial.
            ConflictError: if the experiment does not train, the trial is over, or it has a result
                already and trains on.
        """
        experiment = lock(rows, id)
        trial = rows.get(TrialRow, (id, number))
        if trial is None:
            raise NotFoundError(f"experiment {id} has no trial {number}")
        asked, name = experiment.stops or [], f"trial {number} of experiment {id}"
        if number in asked and trial.state in (*OPEN_TRIALS, "pruned"):
            return
        if trial.state not in OPEN_TRIALS:
            raise ConflictError(f"{name} is {trial.state}, so there is nothing to stop")
        if experiment.state not in PHASES:
            raise ConflictError(
                f"experiment {id} is {experiment.state}: its trials are stopped one by one only "
                f"while it runs; what works now: {name_actions(experiment.state)}"
            )
        if trial.earlier is not None and trial.earlier["state"] in RANKED:
            raise ConflictError(
                f"{name} has a result already and trains further ({trial.earlier['reason']}): what "
                "works is to cancel the experiment, which keeps the result"
            )
        experiment.stops = [*asked, number]
        emit_trial(rows, experiment, trial, "stop_requested")

    @database.transaction
    def prioritize(self, rows: RowSession, id: str, priority: int) -> None:
        """Give an experiment that is not over another priority, in the queue and while it runs."""
        experiment = lock(rows, id)
        was_done(experiment, "prioritize")
        if experiment.priority != priority:
            experiment.priority = priority
            emit(rows, experiment, "experiment.prioritized", priority=priority)

    def archive(self, id: str) -> None:
        """Leave a finished experiment out of lists. A second call changes nothing."""
        self._put_away(id, True)

    def unarchive(self, id: str) -> None:
        """Show an experiment in lists again. A second call changes nothing."""
        self._put_away(id, False)

    @database.transaction
    def _put_away(self, rows: RowSession, id: str, away: bool) -> None:
        experiment = lock(rows, id)
        was_done(experiment, "archive" if away else "unarchive")
        if (experiment.archived_at is not None) != away:
            experiment.archived_at = time.time() if away else None
            emit(rows, experiment, f"experiment.{'archived' if away else 'unarchived'}")

    @database.transaction
    def deliver(self, rows: RowSession, id: str) -> None:
        """Send all of a finished experiment to MLflow once more, from the store.

        Nothing changes if it is still being delivered, or never began.
        """
        experiment = lock(rows, id)
        was_done(experiment, "deliver")
        if experiment.tracked and experiment.generation:
            experiment.tracked = False
            rows.execute(update(TrialRow).where(TrialRow.experiment_id == id).values(tracked=False))
            emit(rows, experiment, "experiment.delivery_requested")

    @database.transaction
    def delete(self, rows: RowSession, id: str) -> None:
        """Have a finished experiment removed, with all its data.

        From now on its drivers may write no more, and it cannot come back. Once more changes
        nothing.

        Raises:
            ConflictError: if the search of an experiment that goes on starts from it.
        """
        experiment = lock(rows, id)
        if not was_done(experiment, "delete"):
            _check_warm_starts(rows, id)
            move_experiment(rows, experiment, "deleting")
            experiment.generation += 1
            now = time.time()
            job = JobRow(kind="deletion", key=id, experiment_id=id, owner=experiment.owner)
            job.request, job.created_at, job.due_at = {}, now, now
            rows.add(job)

    def remove(self, id: str) -> None:
        """Remove all rows of an experiment that is being deleted.

        A large one goes in several transactions, between which others may write.

        Raises:
            NotLeadingError: if another service leads.
        """
        for table in (TrialRow, EventRow):
            while self._remove_some(table, id):
                pass
        self._remove_experiment(id)

    @database.transaction
    def _remove_some(
        self, rows: RowSession, table: type[TrialRow] | type[EventRow], id: str
    ) -> int:
        """Remove some rows of an experiment that is being deleted; return how many there were."""
        self.fence(rows)
        key = TrialRow.number if table is TrialRow else EventRow.id
        some = (
            select(key)
            .join(ExperimentRow, ExperimentRow.id == table.experiment_id)
            .where(table.experiment_id == id, ExperimentRow.state == "deleting")
            .limit(AT_ONCE)
        )
        numbers = rows.execute(some).scalars().all()
        rows.execute(delete(table).where(table.experiment_id == id, key.in_(numbers)))
        return len(numbers)

    @database.transaction
    def _remove_experiment(self, rows: RowSession, id: str) -> None:
        self.fence(rows)
        experiment = rows.get(ExperimentRow, id, lock=True)
        if experiment is not None and experiment.state == "deleting":
            # The database removes what belongs to it.
            rows.execute(delete(ExperimentRow).where(ExperimentRow.id == id))


def lock(rows: RowSession, id: str) -> ExperimentRow:
    """Return an experiment, locked until the end of the transaction.

    Raises:
        ExperimentNotFoundError: if there is none of this id.
    """
    experiment = rows.get(ExperimentRow, id, lock=True)
    if experiment is None:
        raise ExperimentNotFoundError(id)
    return experiment


def was_done(experiment: ExperimentRow, action: Action) -> bool:
    """Return whether an action was done before.

    Raises:
        WrongStateError: if it was not, and the state of the experiment does not allow it.
    """
    if experiment.state in DONE.get(action, ()):
        return True
    if experiment.state not in ACTIONS[action]:
        raise WrongStateError(experiment.id, experiment.state, action)
    return False


def _check_warm_starts(rows: RowSession, id: str) -> None:
    """Refuse to delete what drivers have still to read: each one reads it at its start."""
    sources = cast(ExperimentRow.spec["search"]["warm_start"], Text)
    goes_on = ExperimentRow.state.in_(ACTIONS["cancel"])
    query = select(ExperimentRow.id).where(goes_on, sources.contains(f'"{id}"', autoescape=True))
    if found := rows.execute(query.order_by(ExperimentRow.id)).scalars().all():
        raise ConflictError(
            f"the search of {', '.join(found)} starts from experiment {id} (search.warm_start) and "
            "is not over; wait for its end, or cancel it first"
        )

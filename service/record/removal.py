"""Archives and deletes finished experiments.

Runs in the service's process.
"""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import delete, select

from eigensweep.service.record import database
from eigensweep.service.record.control import Control, lock, was_done
from eigensweep.service.record.journal import emit, move_experiment
from eigensweep.service.record.rows import RowSession
from eigensweep.service.record.tables import EventRow, ExperimentRow, JobRow, TrialRow

AT_ONCE: Final = 2_000
"""Rows that are removed in one transaction."""


class Removal(Control):
    """The part of the record that archives and removes experiments."""

    def archive(self, id: str) -> None:
        """Leave a finished experiment out of lists. A second call changes nothing.

        Raises:
            ExperimentNotFoundError, WrongStateError: as in `Control`.
        """
        self._put_away(id, True)

    def unarchive(self, id: str) -> None:
        """Show an experiment in lists again. A second call changes nothing.

        Raises:
            ExperimentNotFoundError, WrongStateError: as in `Control`.
        """
        self._put_away(id, False)

    @database.transaction
    def _put_away(self, rows: RowSession, id: str, away: bool) -> None:
        experiment = lock(rows, id)
        was_done(experiment, "archive" if away else "unarchive")
        if (experiment.archived_at is not None) != away:
            experiment.archived_at = time.time() if away else None
            emit(rows, experiment, f"experiment.{'archived' if away else 'unarchived'}")

    @database.transaction
    def delete(self, rows: RowSession, id: str) -> None:
        """Have a finished experiment removed, with all its data.

        From now on its drivers may write no more, and it cannot come back. Once more changes
        nothing.

        Raises:
            ExperimentNotFoundError, WrongStateError: as in `Control`.
        """
        experiment = lock(rows, id)
        if not was_done(experiment, "delete"):
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

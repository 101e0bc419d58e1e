"""Which checkpoints of finished experiments are kept.

A rule is recorded before anything is removed, and `Reopening.extend` reads it. So after a death in
the middle the next service goes on, and nothing relies on checkpoints that are about to be removed.
Runs in the service's process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, Row, delete, or_, select
from sqlalchemy.orm import Session

from eigensweep.protocol.states import ENDED, OPEN_TRIALS
from eigensweep.service.record.changes.control import Control, lock
from eigensweep.service.record.errors import ConflictError, WrongStateError
from eigensweep.service.record.journal import emit, record_notices
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, JobRow, TrialRow
from eigensweep.store.checkpoints import Store, trial_key
from eigensweep.store.upkeep.thinning import STRICTNESS, Keep, stricter, thin_out

DAY: Final = 86_400.0
"""Seconds."""


class Retention(Control):
    """The part of the record that decides which checkpoints are kept."""

    @database.transaction
    def prune(self, rows: RowSession, id: str, keep: Keep) -> None:
        """Have checkpoints of a finished experiment removed, except those that `keep` names.

        Raises:
            ExperimentNotFoundError: if there is none of this id.
            WrongStateError: if it is not over.
            ConflictError: if MLflow has not got all of it yet.
        """
        experiment = lock(rows, id)
        self.check_prunable(experiment)
        job = rows.get(JobRow, ("pruning", id))
        if job is None:
            now = time.time()
            job = JobRow(kind="pruning", key=id, experiment_id=id, owner=experiment.owner)
            job.created_at, job.due_at = now, now
            rows.add(job)
        asked: Keep | None = job.request["keep"] if job.request else None
        job.request = {"keep": stricter(keep, asked)}
        experiment.kept = stricter(keep, experiment.kept)
        emit(rows, experiment, "experiment.pruned", reason=keep)

    @staticmethod
    def check_prunable(experiment: ExperimentRow, ended_before: float | None = None) -> None:
        """Refuse to remove checkpoints that may be needed, or that are too young.

        Raises:
            WrongStateError: if it is not over.
            ConflictError: if MLflow has not got all of it yet, or it ended after a time.
        """
        id = experiment.id
        if experiment.state not in ENDED:
            raise WrongStateError(id, experiment.state, "prune")
        if not experiment.tracked:
            raise ConflictError(
                f"experiment {id} is still being delivered to MLflow; prune it after that"
            )
        if ended_before is not None and (experiment.finished_at or 0.0) > ended_before:
            raise ConflictError(f"experiment {id} ended later than you asked for")

    @database.reading
    def list_names(
        self, session: Session, owner: str | None = None
    ) -> Sequence[Row[str, str, str]]:
        """Return id, name and owner of each experiment, of all users or of one."""
        query = select(ExperimentRow.id, ExperimentRow.name, ExperimentRow.owner)
        if owner is not None:
            query = query.where(ExperimentRow.owner == owner)
        return session.execute(query).all()

    def list_prunable(
        self, keep: Keep, ended_before: float | None = None, owner: str | None = None
    ) -> list[str]:
        """Return the ids of experiments to which a rule was not fully applied, the oldest first.

        Only those that ended before a time, in seconds since 1970, and only those of one owner.
        """
        milder: Sequence[Keep] = [
            each for each in STRICTNESS if each and STRICTNESS[each] < STRICTNESS[keep]
        ]
        wanted: list[ColumnElement[bool]] = [
            ExperimentRow.state.in_(ENDED),
            ExperimentRow.tracked.is_(True),
            or_(
                ExperimentRow.kept.is_(None),
                ExperimentRow.kept.in_(milder),
                ExperimentRow.pruned_at < ExperimentRow.finished_at,
            ),
        ]
        if ended_before is not None:
            wanted.append(ExperimentRow.finished_at <= ended_before)
        if owner is not None:
            wanted.append(ExperimentRow.owner == owner)
        query = (
            select(ExperimentRow.id)
            .where(*wanted)
            .order_by(ExperimentRow.finished_at, ExperimentRow.id)
        )
        return database.read(self.url, lambda session: list(session.scalars(query)))

    @database.reading
    def list_ended_trials(self, session: Session, id: str) -> Sequence[Row[int, int]]:
        """Return `number` and newest `attempt` of each trial that is over.

        Commits of a later attempt are not removed. There are no trials in it if the experiment goes
        on, or is gone.
        """
        query = (
            select(TrialRow.number, TrialRow.attempt)
            .join(ExperimentRow, ExperimentRow.id == TrialRow.experiment_id)
            .where(TrialRow.experiment_id == id, TrialRow.state.not_in(OPEN_TRIALS))
            .where(ExperimentRow.state.in_(ENDED))
            .order_by(TrialRow.number)
        )
        return session.execute(query).all()

    def measure_prunable(self, store: Store, id: str, keep: Keep) -> int:
        """Return how many bytes a rule would free of an experiment that is over.

        Raises:
            StorageError: if the store cannot be read.
        """
        return sum(
            thin_out(store, trial_key(id, each.number), keep, each.attempt, only_measure=True)
            for each in self.list_ended_trials(id)
        )

    @database.transaction
    def set_pruned(self, rows: RowSession, id: str, keep: Keep) -> None:
        """Record that nothing is left to be removed by a rule.

        Raises:
            NotLeadingError: if another service leads.
        """
        self.fence(rows)
        experiment = rows.get(ExperimentRow, id, lock=True)
        job = rows.get(JobRow, ("pruning", id))
        if experiment is not None and job is not None and job.request["keep"] == keep:
            done = JobRow.kind == "pruning", JobRow.key == id
            rows.execute(delete(JobRow).where(*done))
            experiment.pruned_at = time.time()
            if experiment.state in ENDED:  # else others write its notices
                record_notices(rows, experiment, [])

"""What the delivery to MLflow reads and writes: runs, and what MLflow holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import bindparam, update
from sqlalchemy.orm import Session

from eigensweep.service.record.journal import LASTING, keep_notices
from eigensweep.service.record.ledger.part import LedgerPart, writes
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow


class DeliveryWrites(LedgerPart):
    """The runs of the experiment and its trials, and of which MLflow holds all."""

    @writes
    def set_run(
        self, rows: RowSession, experiment: ExperimentRow, run_id: str, project_id: str
    ) -> None:
        experiment.run_id, experiment.run_project = run_id, project_id

    @database.reading
    def experiment_run(self, session: Session) -> str | None:
        return session.get_one(ExperimentRow, self.experiment_id).run_id

    @writes
    def set_tracked(self, rows: RowSession, experiment: ExperimentRow) -> None:
        experiment.tracked = True
        keep_notices(experiment, *LASTING)

    @writes
    def forget_delivery(self, rows: RowSession, experiment: ExperimentRow) -> None:
        mine = TrialRow.experiment_id == self.experiment_id
        rows.execute(update(TrialRow).where(mine).values(tracked=False))

    @writes
    def set_delivered(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        runs: Mapping[int, str],
        project_id: str,
        whole: Collection[int],
    ) -> None:
        # Over the primary key, and without reading: a trial's row holds its whole result.
        mine = TrialRow.experiment_id == self.experiment_id
        change = update(TrialRow).where(mine, TrialRow.number == bindparam("trial"))
        if runs:
            told = [{"trial": number, "run": run} for number, run in runs.items()]
            values = {"run_id": bindparam("run"), "run_project": project_id}
            rows.execute(change.values(values), told)
        if whole:
            rows.execute(change.values(tracked=True), [{"trial": n} for n in whole])

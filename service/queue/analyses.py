"""Carries out analyses, one at a time, each in a child process. Runs in the service's process."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

from eigensweep.analyses.messages import AnalysisOrder, Outcome
from eigensweep.service.queue.jobs import ReadingHandler
from eigensweep.service.record.requests.analyses import Analyses, AnalysisRecord
from eigensweep.service.record.sql.tables import JobKind, JobRow

logger = logging.getLogger(__name__)


@dataclass
class AnalysisHandler(ReadingHandler):
    """Carries out what was asked for, the oldest first."""

    kind: ClassVar[JobKind] = "analysis"
    module: ClassVar[str] = "eigensweep.analyses"
    analyses: Analyses
    data_root: str | None = None
    """Folder of the corpora."""

    def work(self, job: JobRow) -> None:
        record = AnalysisRecord.of(job)
        self.analyses.begin(record)
        try:
            outcome = self._carry_out(record)
        except ValueError as error:  # the request was cut
            outcome = Outcome(error=f"{type(error).__name__}: {error}")
        ended = self.analyses.finish(record.id, outcome)
        logger.info("analysis %s id=%s name=%s", ended.state, ended.id, ended.name)

    def _carry_out(self, record: AnalysisRecord) -> Outcome:
        order = AnalysisOrder(
            id=record.id,
            name=record.name,
            options=record.options,
            **record.subject,
            storage=self.probe.place,
            data_root=self.data_root,
            mlflow_uri=self.mlflow.uri if self.mlflow else None,
        )
        return self.children.make(self.analyses.folder / record.id, order, Outcome)

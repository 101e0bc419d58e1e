"""Removes experiments that people want deleted: runs, checkpoints, and at last the rows.

Runs in the service's process. Each step may be done twice.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from eigensweep.service.queue.cluster_process import LauncherAwayError
from eigensweep.service.queue.jobs import Handler, NotDoneError
from eigensweep.service.queue.retention import FILES, require_commits
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql.tables import JobKind, JobRow
from eigensweep.service.store_probe import StoreProbe
from eigensweep.workers.cluster.drivers import DriverProcess

logger = logging.getLogger(__name__)


@dataclass
class DeletionHandler(Handler):
    """Carries out deletions."""

    kind: ClassVar[JobKind] = "deletion"
    module: ClassVar[str] = "eigensweep.workers.driver.deletion"
    first_pause: ClassVar[float] = 2.0
    longest_pause: ClassVar[float] = 300.0
    record: Record
    find_driver: Callable[[str], DriverProcess | None]
    """Returns the running driver of an experiment, None if there is none."""
    folder: Path
    """Where each removal keeps its log."""
    probe: StoreProbe
    """The store; it says where it does not answer."""

    def work(self, job: JobRow) -> None:
        id = job.key
        self._require_no_driver(id)
        self.probe.ask(partial(require_commits, self.record))
        with FILES:
            problem = self._remove_files(id)
        if problem is not None:
            raise NotDoneError(problem)
        self.record.remove(id)
        shutil.rmtree(self.folder / id, ignore_errors=True)
        logger.info("experiment removed experiment=%s", id)

    def _require_no_driver(self, id: str) -> None:
        """Put it off while a driver may still write to MLflow, or that is unknown."""
        try:
            driver = self.find_driver(id)
        except LauncherAwayError as error:
            raise NotDoneError(str(error)) from error
        if driver is not None and driver.state() in ("running", "lost"):
            raise NotDoneError("its driver has not ended yet")

    def _remove_files(self, id: str) -> str | None:
        """Remove runs and checkpoints in a child process; return why that failed."""
        row = self.record.row(id)
        order = {
            "experiment": id,
            "project": row.project,
            "run_id": row.run_id,
            "storage": self.probe.place,
            "mlflow_uri": self.mlflow.uri if self.mlflow else None,
        }
        return self.children.run(self.folder / id, json.dumps(order))

"""Works off the queue of analyses, one at a time, each in a child process.

Runs in the service's process, in a thread.
"""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass, field
from typing import Final

from eigensweep.service.queue.children import ChildRunner
from eigensweep.service.record.analyses import Analyses, AnalysisRecord
from eigensweep.service.settings import Mlflow
from eigensweep.workers.analyses.messages import OUTCOME, AnalysisOrder, Outcome
from eigensweep.workers.shared.durable_files import StorageError

logger = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
"""Pause after an analysis whose state could not be written."""


@dataclass
class AnalysisRunner:
    """Carries out queued analyses. `start` does so in a thread; tests call `tick`."""

    analyses: Analyses
    storage: str
    """Folder of checkpoints and curves."""
    data_root: str | None = None
    """Folder of the corpora."""
    mlflow: Mlflow | None = None
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._children = ChildRunner("eigensweep.workers.analyses", self.mlflow)

    def start(self) -> None:
        """Begin to work off the queue."""
        self._thread = threading.Thread(target=self._run, name="analyses", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Kill the analysis that is running; the next service starts it again."""
        self._stopping.set()
        self.analyses.added.set()
        self._children.kill()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> bool:
        """Carry out the oldest queued analysis; return whether there was one.

        Raises:
            StorageError: if its state cannot be written.
        """
        running = None if self._stopping.is_set() else self.analyses.take_oldest()
        if running is None:
            return False
        try:
            outcome = self._carry_out(running)
        except (OSError, ValueError) as error:  # its folder was removed, or no process starts
            outcome = Outcome(error=f"{type(error).__name__}: {error}")
        if outcome is not None:
            ended = self.analyses.finish(running, outcome)
            logger.info("analysis %s id=%s name=%s", ended.state, ended.id, ended.name)
        return True

    def _run(self) -> None:
        # A loop of our own: it has no last try, and `stop` must end its pauses.
        while not self._stopping.is_set():
            try:
                if self.tick():
                    continue
            except StorageError:  # the queue outlives a full disk
                logger.exception("the state of an analysis cannot be written, trying again")
                self._stopping.wait(PAUSE_SECONDS)
                continue
            self.analyses.added.wait()
            self.analyses.added.clear()

    def _carry_out(self, running: AnalysisRecord) -> Outcome | None:
        """Carry out an analysis and return its outcome; None if this service stops first."""
        folder = self.analyses.folder / running.id
        (folder / OUTCOME).unlink(missing_ok=True)
        request = json.loads((folder / "request.json").read_bytes())
        place = {
            "storage": self.storage,
            "data_root": self.data_root,
            "mlflow_uri": self.mlflow.uri if self.mlflow else None,
        }
        order = AnalysisOrder.model_validate({**request, **place, "id": running.id})
        problem = self._children.run(folder, order.model_dump_json())
        if self._stopping.is_set():
            return None
        try:
            return Outcome.model_validate_json((folder / OUTCOME).read_bytes())
        except (OSError, ValueError):
            return Outcome(error=problem or "its process ended without writing an outcome")

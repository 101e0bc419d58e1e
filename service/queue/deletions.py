"""Removes experiments that people want deleted: runs, study, checkpoints, and at last the rows.

Runs in the service's process, in a thread. The record says what is to be removed, and each step may
be done twice: whatever dies half-way, the next service goes on.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from eigensweep.service.queue.children import ChildRunner
from eigensweep.service.queue.dispatcher import Driver, LauncherAwayError
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Mlflow

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 2.0
"""Seconds before the second try; every further pause is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE: Final = 300.0
LOOK_SECONDS: Final = 10.0
"""Seconds between two looks at the record, where a service that waits may have written, too."""


@dataclass
class _Try:
    """When an experiment is tried again, and the pause after that."""

    not_before: float = 0.0
    pause: float = FIRST_PAUSE


@dataclass
class Deleter:
    """Removes what is to be deleted. `start` does so in a thread; tests call `tick`."""

    record: Record
    find_driver: Callable[[str], Driver | None]
    """Returns the driver of an experiment that still works."""
    folder: Path
    """Where each removal keeps its log."""
    storage: str
    """Folder of checkpoints and curves."""
    studies: str
    """Folder or URL of Optuna's studies."""
    mlflow: Mlflow | None = None
    clock: Callable[[], float] = time.monotonic
    asked: threading.Event = field(default_factory=threading.Event)
    """Set it to have the record looked at at once."""
    files: threading.Lock = field(default_factory=threading.Lock)
    """Held while files of an experiment are removed; who prunes checkpoints holds it, too."""
    _tries: dict[str, _Try] = field(default_factory=dict)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        self._children = ChildRunner("eigensweep.workers.driver.deletion", self.mlflow)

    def start(self) -> None:
        """Begin to work."""
        self._thread = threading.Thread(target=self._run, name="deletions", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop in the middle, if need be; the next service goes on."""
        self._stopping.set()
        self.asked.set()
        self._children.kill()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> bool:
        """Try to remove each experiment that is to be; return whether any is left.

        Raises:
            SQLAlchemyError, OSError: if the database or the disk does not work as it should.
        """
        ids = self.record.list_deleting()
        self._tries = {id: self._tries.get(id, _Try()) for id in ids}
        return any([not self._try(id) for id in ids if not self._stopping.is_set()])

    def _run(self) -> None:
        # A loop of our own: it has no last try, and `stop` must end its pauses.
        while not self._stopping.is_set():
            try:
                pause = FIRST_PAUSE if self.tick() else LOOK_SECONDS
            except (SQLAlchemyError, OSError):
                logger.exception("experiments cannot be removed now, trying again")
                pause = LONGEST_PAUSE / 10
            self.asked.wait(pause)
            self.asked.clear()

    def _try(self, id: str) -> bool:
        """Remove an experiment, unless it waits after a failure; return whether it is removed."""
        now = self._tries[id]
        if self.clock() < now.not_before or self._has_driver(id):
            return False
        with self.files:
            problem = self._remove_files(id)
        if self._stopping.is_set():
            return False
        if problem is not None:
            logger.warning("experiment not removed yet experiment=%s: %s", id, problem)
            now.not_before = self.clock() + now.pause
            now.pause = min(2 * now.pause, LONGEST_PAUSE)
            return False
        self.record.remove(id)
        shutil.rmtree(self.folder / id, ignore_errors=True)
        logger.info("experiment removed experiment=%s", id)
        return True

    def _has_driver(self, id: str) -> bool:
        """Return whether a driver may still write to MLflow, or that cannot be known now."""
        try:
            driver = self.find_driver(id)
            return driver is not None and driver.state() in ("running", "lost")
        except LauncherAwayError:
            return True

    def _remove_files(self, id: str) -> str | None:
        """Remove runs, study and checkpoints in a child process; return why that failed."""
        folder = self.folder / id
        folder.mkdir(parents=True, exist_ok=True)
        order = {
            "experiment": id,
            "project": self.record.row(id).project,
            "storage": self.storage,
            "studies": self.studies,
            "mlflow_uri": self.mlflow.uri if self.mlflow else None,
        }
        return self._children.run(folder, json.dumps(order))

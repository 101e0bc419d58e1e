"""Removes checkpoints of experiments that are over, as people or the service's rule say.

Corpora in the store that no experiment uses any more are removed, too.

Runs in the service's process, in a thread. The record says what is to be removed, and each trial
may be looked at twice: whatever dies half-way, the next service goes on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.record import Record
from eigensweep.service.record.retention import DAY
from eigensweep.workers.shared import corpora
from eigensweep.workers.shared.checkpoints import Store, trial_key
from eigensweep.workers.shared.durable_files import StorageError, StoreAwayError
from eigensweep.workers.shared.states import ENDED
from eigensweep.workers.shared.thinning import Keep, thin_out

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Seconds between two looks at the record, where a service that waits may have written, too."""
PAUSE: Final = 30.0
"""Seconds before the next try where the disk or the database did not work."""


@dataclass(frozen=True)
class Schedule:
    """The rule by which the service removes checkpoints by itself."""

    keep: Keep | None
    """None: it removes nothing by itself."""
    after_days: float
    """Days after the end of an experiment."""
    every_hours: float
    """Hours between two looks."""


@dataclass
class Pruner:
    """Removes what is to be pruned. `start` does so in a thread; tests call `tick`."""

    record: Record
    store: Store
    schedule: Schedule
    files: threading.Lock
    """Held while files of an experiment are removed; who deletes experiments holds it, too."""
    clock: Callable[[], float] = time.time
    asked: threading.Event = field(default_factory=threading.Event)
    """Set it to have the record looked at at once."""
    _due_at: float = 0.0
    _stopping: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work."""
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop after the trial of now; the next service goes on."""
        self._stopping.set()
        self.asked.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> None:
        """Note what the schedule says, and remove what is to be removed, also unused corpora.

        Raises:
            SQLAlchemyError, StorageError: if the database or the disk does not work as it should.
        """
        is_due = self.clock() >= self._due_at
        if is_due:
            self._follow_schedule()
        pruned = self.record.list_pruning()
        for id in pruned:
            if not self._stopping.is_set():
                with suppress(NotFoundError):
                    self._prune(id)
        if is_due or pruned:
            for archive in corpora.remove_unused(self.store):
                logger.info("corpus removed from the store archive=%s", archive)
        if is_due:
            self._due_at = self.clock() + self.schedule.every_hours * 3600

    def _follow_schedule(self) -> None:
        keep = self.schedule.keep
        if keep is not None:
            ended_before = self.clock() - self.schedule.after_days * DAY
            for id in self.record.list_prunable(keep, ended_before):
                with suppress(ConflictError, NotFoundError):  # it was taken up, or deleted
                    self.record.prune(id, keep)

    def _prune(self, id: str) -> None:
        with self.files:  # so that it is not deleted meanwhile
            # Listed before the look at the state: if it is over, these are drivers of the past.
            users = corpora.list_users(self.store, id)
            row, freed = self.record.row(id), 0
            keep = row.pruning
            if keep is None or row.state not in ENDED:
                return
            corpora.release(self.store, users)
            for trial in self.record.list_ended_trials(id):
                if self._stopping.is_set():
                    return
                freed += thin_out(self.store, trial_key(id, trial.number), keep, trial.attempt)
        self.record.set_pruned(id, keep)
        logger.info("checkpoints removed experiment=%s keep=%s bytes=%d", id, keep, freed)

    def _run(self) -> None:
        # A loop of our own: it has no last try, and `stop` must end its pauses.
        while not self._stopping.is_set():
            try:
                self.tick()
                pause = max(1.0, self._due_at - self.clock())
            except StoreAwayError as error:
                logger.warning("checkpoints cannot be removed now, trying again: %s", error)
                pause = PAUSE
            except (SQLAlchemyError, StorageError):
                logger.exception("checkpoints cannot be removed now, trying again")
                pause = PAUSE
            self.asked.wait(min(pause, LOOK_SECONDS))
            self.asked.clear()

"""Removes checkpoints by request or by rule, and corpora that no experiment needs.

Runs in the service's process. Each trial may be looked at twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final

from eigensweep.protocol.states import ENDED
from eigensweep.service.queue.jobs import Handler, NotDoneError, StoppedError
from eigensweep.service.record.changes.retention import DAY
from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql.tables import JobKind, JobRow
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.checkpoints import Store, trial_key
from eigensweep.store.places.durable_files import StorageError
from eigensweep.store.upkeep import corpora
from eigensweep.store.upkeep.copies import explain_emptiness
from eigensweep.store.upkeep.thinning import Keep, thin_out

logger = logging.getLogger(__name__)

FILES: Final = threading.Lock()
"""Held while files of an experiment are removed, here and by deletions."""


def require_commits(record: Record, store: Store) -> None:
    """Put a removal off while the store holds nothing at all, although trials have trained.

    A mount may be missing: its files would stay, and nobody would remove them later. Experiments
    that are being deleted do not count, so that a deletion can be done twice.

    Raises:
        NotDoneError: says what to do.
        StorageError: if the store cannot be read.
    """
    if (words := explain_emptiness(store)) is not None and record.has_trained():
        raise NotDoneError(words)


@dataclass
class PruningHandler(Handler):
    """Prunes checkpoints that were requested, and those that the rule names."""

    kind: ClassVar[JobKind] = "pruning"
    first_pause: ClassVar[float] = 30.0
    longest_pause: ClassVar[float] = 60.0
    record: Record
    probe: StoreProbe
    """The store; it says where it does not answer."""
    keep: Keep | None = None
    """What the service keeps by itself; None: it removes nothing by itself."""
    after_days: float = 30.0
    """Days after the end of an experiment."""
    every_hours: float = 1.0
    """Hours between two looks."""
    clock: Callable[[], float] = time.time
    _due_at: float = 0.0

    def look(self) -> None:
        """Apply the rule and remove unused corpora, every `every_hours`."""
        now, pause = self.clock(), self.every_hours * 3600
        is_early = self._due_at - pause <= now < self._due_at  # the clock may have been set back
        if is_early or self.probe.find_problem() is not None:
            return
        if self.keep is not None:
            for id in self.record.list_prunable(self.keep, now - self.after_days * DAY):
                with suppress(ConflictError, NotFoundError):  # it was taken up, or deleted
                    self.record.prune(id, self.keep)
        self._remove_corpora()
        self._due_at = now + pause

    def work(self, job: JobRow) -> None:
        keep: Keep = job.request["keep"]
        with suppress(NotFoundError):  # it was deleted
            self._prune(job.key, keep)
        self._remove_corpora()

    def _prune(self, id: str, keep: Keep) -> None:
        self.probe.ask(partial(require_commits, self.record))
        with FILES:  # so that it is not deleted meanwhile
            # Listed before the look at the state: if it is over, these are drivers of the past.
            users, freed = corpora.list_users(self.probe.store, id), 0
            if (row := self.record.row(id)).state not in ENDED:
                raise NotDoneError(f"the experiment is {row.state}")
            if not row.tracked:  # it was taken up after it was asked for
                raise NotDoneError("it is still being delivered to MLflow")
            corpora.release(self.probe.store, users)
            for trial in self.record.list_ended_trials(id):
                if self.stopping.is_set():
                    raise StoppedError
                freed += thin_out(
                    self.probe.store, trial_key(id, trial.number), keep, trial.attempt
                )
        self.record.set_pruned(id, keep)
        logger.info("checkpoints removed experiment=%s keep=%s bytes=%d", id, keep, freed)

    def _remove_corpora(self) -> None:
        try:
            for archive in corpora.remove_unused(self.probe.store):
                logger.info("corpus removed from the store archive=%s", archive)
        except StorageError as error:  # no experiment waits for it
            logger.warning("corpora are not removed yet: %s", error)

"""Marks in the store that tell trials to stop, to pause, or to leave their node."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from eigensweep.store.places.durable_files import StorageError
from eigensweep.store.places.files import Files, open_files

logger = logging.getLogger(__name__)

MOST_SEEN: Final = 10_000
"""Marks that a process remembers."""
AWAY_SECONDS: Final = 10.0
"""So long a store is not asked for marks after it could not be: an engine looks at those of each of
its trials in turn, and each look at a store that hangs takes until its time is over."""


def cancel_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to stop."""
    return Mark(str(storage), f"{experiment}/cancelled")


def pause_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to commit and to leave."""
    return Mark(str(storage), f"{experiment}/paused")


def leave_mark(storage: str | Path, experiment: str, number: int, attempt: int) -> Mark:
    """Return the file whose presence tells one attempt to commit and to leave: its node drains."""
    return Mark(str(storage), f"{experiment}/leave-{number}-{attempt}")


@dataclass(frozen=True)
class Mark:
    """A file of the store whose presence says something.

    In an object store it is looked at every few seconds; while the store is away it is as before.
    """

    storage: str
    path: str

    def exists(self) -> bool:
        """Return whether it is there, as far as this process has seen."""
        files = _files(self.storage)
        looked_at, was_there = _SEEN.get(self, (float("-inf"), False))
        if time.monotonic() - looked_at < files.look_seconds:
            return was_there
        if time.monotonic() < _AWAY_UNTIL.get(self.storage, float("-inf")):
            return was_there
        try:
            is_there = files.size(self.path) is not None
        except StorageError as error:
            logger.warning("cannot look for a mark: %s", error)
            _AWAY_UNTIL[self.storage] = time.monotonic() + AWAY_SECONDS
            return was_there
        _SEEN.pop(self, None)
        _SEEN[self] = time.monotonic(), is_there
        if len(_SEEN) > MOST_SEEN:  # an engine sees the marks of thousands of trials
            _SEEN.pop(next(iter(_SEEN)), None)
        return is_there

    def forget(self) -> None:
        """Look at it anew: what was seen before may be of an earlier request."""
        _SEEN.pop(self, None)

    def touch(self) -> None:
        """Make it."""
        _SEEN.pop(self, None)
        _files(self.storage).write(self.path, b"")

    def unlink(self) -> None:
        """Remove it, if it is there."""
        _SEEN.pop(self, None)
        _files(self.storage).remove(self.path)


_SEEN: dict[Mark, tuple[float, bool]] = {}
"""When a mark was looked at, and whether it was there; the last look comes last."""
_AWAY_UNTIL: dict[str, float] = {}
"""Until when a store is not asked, by `time.monotonic`."""


@cache
def _files(storage: str) -> Files:
    """Return the process's own files of a store, whose connections it keeps."""
    return open_files(storage)

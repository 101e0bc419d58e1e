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

MARKS: Final = "marks"
"""The folder of an experiment's marks."""
AWAY_SECONDS: Final = 10.0
"""So long a store is not asked for marks after it could not be: each look at a store that hangs
takes until its time is over."""


def cancel_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to stop."""
    return Mark(str(storage), experiment, "cancelled")


def pause_mark(storage: str | Path, experiment: str) -> Mark:
    """Return the file whose presence tells the trials of an experiment to commit and to leave."""
    return Mark(str(storage), experiment, "paused")


def leave_mark(storage: str | Path, experiment: str, number: int, attempt: int) -> Mark:
    """Return the file whose presence tells one attempt to commit and to leave: its node drains."""
    return Mark(str(storage), experiment, f"leave-{number}-{attempt}")


@dataclass(frozen=True)
class Mark:
    """A file of the store whose presence says something.

    Those of an experiment are looked at together: an engine asks for three of each of its trials.
    In an object store that is done every few seconds; while the store is away they are as before.
    """

    storage: str
    experiment: str
    name: str

    @property
    def path(self) -> str:
        """Its place in the store."""
        return f"{self.experiment}/{MARKS}/{self.name}"

    def exists(self) -> bool:
        """Return whether it is there, as far as this process has seen."""
        return self.name in _look(self.storage, self.experiment)

    def forget(self) -> None:
        """Look at all marks of its experiment anew: what was seen may be of an earlier request."""
        _SEEN.pop((self.storage, self.experiment), None)

    def touch(self) -> None:
        """Make it."""
        self.forget()
        _files(self.storage).write(self.path, b"")

    def unlink(self) -> None:
        """Remove it, if it is there."""
        self.forget()
        _files(self.storage).remove(self.path)


_SEEN: dict[tuple[str, str], tuple[float, list[str]]] = {}
"""When the marks of an experiment were looked at, and which were there."""
_AWAY_UNTIL: dict[str, float] = {}
"""Until when a store is not asked, by `time.monotonic`."""


def _look(storage: str, experiment: str) -> list[str]:
    """Return the names of the marks of an experiment that are there."""
    files, now = _files(storage), time.monotonic()
    looked_at, names = _SEEN.get((storage, experiment), (float("-inf"), []))
    if now < max(looked_at + files.look_seconds, _AWAY_UNTIL.get(storage, float("-inf"))):
        return names
    try:
        names = files.names(f"{experiment}/{MARKS}")
    except StorageError as error:
        logger.warning("cannot look for marks: %s", error)
        _AWAY_UNTIL[storage] = time.monotonic() + AWAY_SECONDS
        return names
    _SEEN[storage, experiment] = now, names
    return names


@cache
def _files(storage: str) -> Files:
    """Return the process's own files of a store, whose connections it keeps."""
    return open_files(storage)

"""Curves and checkpoints of the store, as whoever reports, delivers or shows them reads them.

No torch here: a curve holds committed points only, and a checkpoint is bytes.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, TypeVar

from eigensweep.store.commits.curves import CurvePoint, read_if_whole, read_line, thin
from eigensweep.store.commits.head import Checkpoint
from eigensweep.store.commits.heads import MOST_TRIES, Heads
from eigensweep.store.places.durable_files import DamagedError, StorageError, StoreAwayError
from eigensweep.store.places.files import open_files

logger = logging.getLogger(__name__)

T = TypeVar("T")

PIECE: Final = 1024 * 1024
"""Bytes of a file that is read piece by piece."""

STEP: Final = re.compile(rb'"step": (\d+)')
DAMAGED: Final = "checkpoint damaged, falling back path=%s step=%d"


@dataclass(frozen=True)
class StoredCheckpoint:
    """A committed checkpoint."""

    file: str
    step: int
    bytes: int


class StoredCommits:
    """Reads what was committed below a folder or a URL; of a curve it goes on where it was."""

    def __init__(self, place: Path | str) -> None:
        self.files = open_files(place)
        self.place = self.files.place
        """Where it is, for a person to read: a folder or a URL."""
        self.heads = Heads(self.files)
        self._read: dict[str, tuple[int, int]] = {}
        """By key: points and bytes up to where a curve was read."""

    def points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the committed points of `key` from the index `since` on."""
        head = self.heads.read(key)
        if since >= head.curve_points:
            return []
        index, offset = self._read.get(key, (0, 0))
        if since < index:
            index, offset = 0, 0
        try:
            lines = self.heads.read_curve(key, head, offset).splitlines()
            if len(lines) != head.curve_points - index:
                raise DamagedError(
                    f"the curve in {self.place}/{key} holds {index + len(lines)} points, "
                    f"and its head counts {head.curve_points}"
                )
            points = [read_line(line) for line in lines[since - index :]]
        except DamagedError:
            if offset == 0:
                raise
            self.forget(key)  # an attempt may have gone back, and its lines have other lengths
            return self.points(key, since)
        self._read[key] = (head.curve_points, head.curve_bytes)
        return points

    def whole_points(self, key: str, since: int = 0) -> list[CurvePoint]:
        """Return the same of a curve, or a head, that is damaged: what can still be read of it.

        For who shows a trial, or reads of one that is over: no attempt goes back behind the damage.
        """
        lines = self._read_lines(key)[since:]
        return [point for line in lines if (point := read_if_whole(line)) is not None]

    def forget(self, key: str) -> None:
        """Forget up to where the curve of `key` was read; it can be read again."""
        self._read.pop(key, None)

    def sample(
        self, key: str, metric: str, most: int, steps: int | None = None
    ) -> list[CurvePoint]:
        """Return `most` committed points of `key` at most that hold `metric`; see `thin`.

        Those behind `steps` are left out: see `cut`.

        Only these points are parsed. Nothing committed gives no points, and of a curve that is
        damaged there is what can be read.
        """
        name = json.dumps(metric).encode() + b":"
        having = [line for line in self._read_lines(key) if name in line]
        if steps and having and _read_step(having[-1]) > steps:
            having = [line for line in having if _read_step(line) <= steps]
        kept = thin(having, most)
        points = [point for line in kept if (point := read_if_whole(line)) is not None]
        return [point for point in points if metric in point.metrics]  # a line has more names

    def _read_lines(self, key: str) -> list[bytes]:
        """Return the committed lines of a curve, or as many as there are."""
        for _ in range(MOST_TRIES):
            with suppress(FileNotFoundError):  # a newer head has merged parts of the curve
                head = self.heads.read_whole(key)
                return self.heads.read_what_is_there(key, head).splitlines()
        raise StoreAwayError(f"others change {self.place}/{key} all the time")

    def open_newest(self, key: str) -> IO[bytes] | None:
        """Open the newest undamaged checkpoint of `key`; None if there is none.

        It can be read to its end also if it is removed meanwhile, in a folder. None of it is kept.

        Raises:
            StorageError: if it cannot be read.
        """
        found = self.find_newest(key, self._open_whole)
        return None if found is None else found[1]

    def has_checkpoint(self, key: str) -> bool:
        """Return whether anything was committed at `key`; reads no checkpoint."""
        return bool(self.heads.read(key).checkpoints)

    def list_checkpoints(self, key: str) -> list[StoredCheckpoint]:
        """Return what the committed checkpoints of `key` are, the newest first.

        Where the newest head is damaged, they are those of the one before.
        """
        found = []
        for checkpoint in self.heads.read_whole(key).checkpoints:
            size = self.files.size(f"{key}/{checkpoint.file}")
            if size is not None:
                found.append(StoredCheckpoint(checkpoint.file, checkpoint.step, size))
        return found

    def read_checkpoint(self, key: str, checkpoint: Checkpoint) -> bytes | None:
        """Return the content of a checkpoint, None if it is damaged or gone."""
        path = f"{key}/{checkpoint.file}"
        with suppress(FileNotFoundError):
            content = self.files.read(path)
            if zlib.crc32(content) == checkpoint.crc:
                return content
        logger.warning(DAMAGED, f"{self.place}/{path}", checkpoint.step)
        return None

    def find_newest(
        self, key: str, read: Callable[[str, Checkpoint], T | None]
    ) -> tuple[Checkpoint, T] | None:
        """Return the newest checkpoint of a key of which `read` finds something, and that."""
        head, seen = self.heads.read_whole(key), -1
        while head.number != seen:  # a newer head may have let a checkpoint go meanwhile
            for checkpoint in head.checkpoints:
                content = read(key, checkpoint)
                if content is not None:
                    return checkpoint, content
            head, seen = self.heads.read_whole(key), head.number
        return None

    def _open_whole(self, key: str, checkpoint: Checkpoint) -> IO[bytes] | None:
        """Open a checkpoint that is undamaged; None if it is not."""
        path, crc = f"{key}/{checkpoint.file}", 0
        try:
            file = self.files.open(path)
            while piece := file.read(PIECE):
                crc = zlib.crc32(piece, crc)
            if crc == checkpoint.crc:
                return file
            file.close()
        except FileNotFoundError:
            pass
        except StorageError:
            raise
        except Exception as error:
            self.files.fail("read", path, error)
        logger.warning(DAMAGED, f"{self.place}/{path}", checkpoint.step)
        return None


def _read_step(line: bytes) -> int:
    """Return the step of a line of a curve, -1 if there is none to be read."""
    found = STEP.search(line)
    return -1 if found is None else int(found[1])

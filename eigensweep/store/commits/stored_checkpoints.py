"""The checkpoints of the store, read without torch: lists, and the newest undamaged one."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, TypeVar

from eigensweep.store.commits.head import Checkpoint
from eigensweep.store.commits.store_part import StorePart, check_key
from eigensweep.store.places.durable_files import StorageError

logger = logging.getLogger(__name__)

T = TypeVar("T")

PIECE: Final = 1024 * 1024
"""Bytes of a file that is read piece by piece."""

DAMAGED: Final = "checkpoint damaged, falling back path=%s step=%d"


@dataclass(frozen=True)
class StoredCheckpoint:
    """A committed checkpoint."""

    file: str
    step: int
    bytes: int


class StoredCheckpoints(StorePart):
    """Reads checkpoints."""

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
        return bool(self.heads.read(check_key(key)).checkpoints)

    def list_checkpoints(self, key: str) -> list[StoredCheckpoint]:
        """Return what the committed checkpoints of `key` are, the newest first."""
        found = []
        for checkpoint in self.heads.read(check_key(key)).checkpoints:
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
        head, seen = self.heads.read_whole(check_key(key)), -1
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

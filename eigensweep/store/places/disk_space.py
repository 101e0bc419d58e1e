"""Whether the disks that an experiment writes to have room for another trial."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from eigensweep.protocol.messages import Notice

LOOK_SECONDS: Final = 5.0
"""How long a driver relies on what it saw of the disks."""

SLACK: Final = 1.1
"""New trials begin again when so many times the limit is free, so that they do not begin and stop
in turns."""


TRIED_BYTES: Final = 64 * 1024
"""Bytes that are written to see whether something can be."""

LEAST_FILES: Final = 500
"""New trials begin where a disk has room for so many files: each makes about ten."""


def find_low(folder: Path, least_bytes: float) -> str | None:
    """Return what a folder's disk has too little of for another trial: bytes, or files.

    Raises:
        OSError: if the disk does not answer.
    """
    free = measure_free(folder)
    if free < least_bytes:
        return f"has {free / 1e6:.0f} MB free"
    files = count_files(folder)
    if files is not None and files < LEAST_FILES:
        return f"has {free / 1e6:.0f} MB and room for {files} more files (inodes) free"
    return None


def count_files(folder: Path) -> int | None:
    """Return how many more files the disk of a folder can hold; None: it has no such limit.

    Raises:
        OSError: if the disk does not answer.
    """
    found = os.statvfs(_nearest(folder))
    return found.f_favail if found.f_files else None


def measure_free(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, or of the one above it that exists.

    Raises:
        OSError: if the disk does not answer.
    """
    return shutil.disk_usage(_nearest(folder)).free


def _nearest(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def explain_unwritable(folder: Path) -> str | None:
    """Return why no file can be written in a folder, None if one can.

    It tries, and leaves nothing. On a full disk there is often still room for an empty file.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(TRIED_BYTES))
        return None
    except FileNotFoundError:  # it is made when it is needed
        return None
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            why = "this disk has no room left: its bytes or its inodes are used up (`df`, `df -i`)"
        return f"nothing can be written to {folder}: {why}"


class DiskSpace:
    """Looks at the disks of some folders from time to time. Trials that run are left to go on."""

    def __init__(
        self,
        folders: Iterable[str],
        least_bytes: int,
        find_low: Callable[[Path, float], str | None] = find_low,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `least_bytes` 0 the disks are not looked at."""
        self._folders = [Path(folder) for folder in folders]
        self._least, self._find_low, self._clock = least_bytes, find_low, clock
        self._look_at = clock()
        self._notice: Notice | None = None

    def notice(self) -> Notice | None:
        """Return why no trial may begin now; None: there is room."""
        if self._least and self._clock() >= self._look_at:
            self._look_at = self._clock() + LOOK_SECONDS
            self._notice = self._look()
        return self._notice

    def _look(self) -> Notice | None:
        wanted = self._least * (1 if self._notice is None else SLACK)
        for folder in self._folders:
            try:
                low = self._find_low(folder, wanted)
            except OSError:
                continue  # whoever writes there says what fails
            if low is not None:
                return Notice("disk", explain_low(folder, low, self._least))
        return None


def explain_low(folder: Path, low: str, least: int) -> str:
    """Return the words for a person whose disk is nearly full, as `find_low` says; in bytes."""
    return (
        f"new trials wait: the disk of {folder} {low}, and they begin with {least / 1e6:.0f} MB or "
        f"more (EIGENSWEEP_LEAST_FREE_MB) and {LEAST_FILES} files. Trials that run go on. Remove "
        "something, and the rest begins by itself"
    )

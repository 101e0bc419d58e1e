"""The folder of a Ray of our own, which no other user can enter.

Runs in the process that starts Ray (`served`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from filelock import FileLock, Timeout

from eigensweep.common.private_folders import UnsafeFolderError, make_private

LONGEST: Final = 40
"""Ray's sockets lie below its folder, and a socket's path has at most 107 characters."""
SHORT: Final = Path("/tmp")
PREFIX: Final = "eigensweep-"
"""The beginning of the names of our folders among the temporary files."""
INNER: Final = "r"
"""Ray gives everybody all rights in its folder, so its folder lies inside of ours."""


@dataclass
class RayFolder:
    """A folder in use; the kernel holds its lock, which ends with this process."""

    path: Path
    """Ray's own folder."""
    _ours: Path
    _lock: FileLock

    @classmethod
    def make(cls, wanted: Path | None) -> Self:
        """Make an empty folder: `wanted`, or if Ray cannot use that path, a temporary one.

        Ray can use no path that is long or has other letters than those of ASCII.

        Folders that killed processes of this user left among the temporary files are removed.

        Raises:
            UnsafeFolderError: if another user could exchange the folder.
            OSError: if it cannot be made.
        """
        path = "" if wanted is None else str(wanted.absolute() / INNER)
        if wanted is not None and len(path) <= LONGEST and path.isascii():
            ours = wanted.absolute()
            shutil.rmtree(ours, ignore_errors=True)
            if ours.exists():
                raise UnsafeFolderError(f"{ours} cannot be removed: remove it by hand")
        else:
            _remove_abandoned(SHORT)
            ours = Path(tempfile.mkdtemp(prefix=PREFIX, dir=SHORT))
        make_private(ours)
        lock = FileLock(ours / "lock", fallback_to_soft=False)
        lock.acquire(blocking=False)
        return cls(ours / INNER, ours, lock)

    def remove(self) -> None:
        """Remove the folder with all that Ray has left in it."""
        shutil.rmtree(self._ours, ignore_errors=True)
        self._lock.release()


def _remove_abandoned(base: Path) -> None:
    """Remove this user's folders whose process has ended."""
    for folder in base.glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            is_mine = folder.lstat().st_uid == os.geteuid() and folder.lstat().st_mode & 0o077 == 0
            if is_mine and (folder / "lock").exists():
                with FileLock(folder / "lock", fallback_to_soft=False).acquire(blocking=False):
                    shutil.rmtree(folder, ignore_errors=True)

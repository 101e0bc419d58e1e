"""Whether the disks that an experiment writes to have room for another trial."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from eigensweep.workers.shared.messages import Notice

LOOK_SECONDS: Final = 5.0
"""How long a driver relies on what it saw of the disks."""

SLACK: Final = 1.1
"""New trials begin again when so many times the limit is free, so that they do not begin and stop
in turns."""


def measure_free(folder: Path) -> int:
    """Return the free bytes of the disk of a folder, or of the one above it that exists.

    Raises:
        OSError: if the disk does not answer.
    """
    here = next(each for each in (folder, *folder.parents) if each.exists())
    return shutil.disk_usage(here).free


class DiskSpace:
    """Looks at the disks of some folders from time to time. Trials that run are left to go on."""

    def __init__(
        self,
        folders: Iterable[str],
        least_bytes: int,
        measure: Callable[[Path], int] = measure_free,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `least_bytes` 0 the disks are not looked at."""
        self._folders = [Path(folder) for folder in folders]
        self._least, self._measure, self._clock = least_bytes, measure, clock
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
                free = self._measure(folder)
            except OSError:
                continue  # whoever writes there says what fails
            if free < wanted:
                return Notice("disk", explain_low(folder, free, self._least))
        return None


def explain_low(folder: Path, free: int, least: int) -> str:
    """Return the words for a person whose disk is nearly full; sizes in bytes."""
    return (
        f"new trials wait: the disk of {folder} has {free / 1e6:.0f} MB free, and they begin with "
        f"{least / 1e6:.0f} MB or more (EIGENSWEEP_LEAST_FREE_MB). Trials that run go on. Free "
        "space, and the rest begins by itself"
    )

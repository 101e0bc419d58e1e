"""How many drivers this machine's memory holds, and what is kept for them.

Every driver is a process on the service's machine, whatever Ray it belongs to. It reserves no CPU
in Ray: it works for some milliseconds when a trial begins or ends, and a core of its own would be a
place less for trials on a laptop. Its memory it keeps as long as it lives. What Ray gives away by
itself could be taken by trials while a driver that died is started again; so the memory of all
drivers is taken off what a Ray of our own has for trials, from the start.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

MOST_OF_MEMORY: Final = 0.5
"""Drivers take no larger part of the machine's memory than this, but one may always run."""
LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says what a container may have."""


def count_drivers(wanted: int, driver_bytes: int, memory: int) -> int:
    """Return how many drivers may run at once where there are so many bytes of memory.

    >>> count_drivers(2, 400, 8_000), count_drivers(50, 400, 8_000), count_drivers(2, 400, 100)
    (2, 10, 1)
    """
    fitting = max(1, int(memory * MOST_OF_MEMORY) // max(1, driver_bytes))
    if fitting < wanted:
        logger.warning(
            "memory for %d of %d drivers at once: each takes %.1f GB (EIGENSWEEP_DRIVER_MB), and "
            "this machine has %.1f GB",
            fitting,
            wanted,
            driver_bytes / 1e9,
            memory / 1e9,
        )
    return min(wanted, fitting)


def find_memory() -> int:
    """Return the memory of this machine, or of this container if that may have less; in bytes."""
    memory = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # there is no limit, or no such file
        return min(memory, int(LIMIT.read_text()))
    return memory

"""How many experiments run at once, and how many drivers this machine's memory holds.

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
from typing import Final, NamedTuple

import psutil  # type: ignore[import-untyped]

logger = logging.getLogger(__name__)

MOST_OF_MEMORY: Final = 0.5
"""Drivers take no larger part of the machine's memory than this, but one may always run."""
PART_BESIDE_TRIALS: Final = 0.25
"""The same where trials have the same memory, unless more experiments are wanted."""
LEAST_AT_ONCE: Final = 2
"""So many experiments run at once, whoever posted them, unless another number is wanted."""
ENOUGH_USERS: Final = 8
"""Beside trials, memory is kept for so many users, or for as many as there are processors."""
LIMIT: Final = Path("/sys/fs/cgroup/memory.max")
"""Where Linux says what a container may have."""


class DriverRoom(NamedTuple):
    """How many experiments run at once."""

    experiments: int
    """Whoever posted them."""
    drivers: int
    """How many drivers there are room for: beyond `experiments`, each user may have one."""


def count_drivers(
    wanted: int | None, driver_bytes: int, memory: int, spare: int = 0, cpus: int | None = None
) -> DriverRoom:
    """Return how many experiments run at once, each with a driver, with so many bytes of memory.

    `wanted` experiments; None: as many as are sensible. Room for `spare` drivers is left beside
    them. `cpus` is how many processors trials have on the same machine; None: they are elsewhere.

    >>> count_drivers(None, 400, 8_000, 2)
    DriverRoom(experiments=4, drivers=8)
    >>> count_drivers(None, 400, 8_000, 2, cpus=16), count_drivers(None, 400, 64_000, 2, cpus=16)
    (DriverRoom(experiments=2, drivers=3), DriverRoom(experiments=2, drivers=16))
    >>> count_drivers(50, 400, 8_000, 2, cpus=16), count_drivers(2, 400, 100, 2)
    (DriverRoom(experiments=8, drivers=8), DriverRoom(experiments=1, drivers=1))
    """
    each = max(1, driver_bytes)
    fitting = most = max(1, int(memory * MOST_OF_MEMORY) // each - spare)
    if cpus is not None:
        beside = int(memory * PART_BESIDE_TRIALS) // each - spare
        most = min(fitting, max(beside, wanted or LEAST_AT_ONCE))
        most = min(most, max(ENOUGH_USERS, cpus, wanted or 0))
    if wanted is not None and most < wanted:
        logger.warning(
            "memory for %d of %d drivers at once: each takes %.1f GB (EIGENSWEEP_DRIVER_MB), %d "
            "more deliver what is over, and this machine has %.1f GB",
            most,
            wanted,
            driver_bytes / 1e9,
            spare,
            memory / 1e9,
        )
    sensible = LEAST_AT_ONCE if cpus is not None else max(LEAST_AT_ONCE, most // 2)
    return DriverRoom(min(most, wanted or sensible), most)


def find_memory() -> int:
    """Return the memory of this machine, or of this container if that may have less; in bytes."""
    memory = int(psutil.virtual_memory().total)
    with suppress(OSError, ValueError):  # there is no limit, or no such file
        return min(memory, int(LIMIT.read_text()))
    return memory

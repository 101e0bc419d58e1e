"""What machine this is, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final

OWN_GROUPS: Final = Path("/proc/self/cgroup")
"""Where Linux says in which control groups this process is."""
GROUPS: Final = Path("/sys/fs/cgroup")
"""Where the limits of control groups are."""


def read_processor() -> tuple[str, int]:
    """Return the processor's name as Linux knows it, else as Python does, and its cores.

    0 cores: their number is unknown.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor() or platform.machine()), len(names)


def count_processors() -> int:
    """Return on how many processors Linux lets this process run.

    These may be fewer than the machine has: in a job of Slurm, or below `taskset`.
    """
    return len(os.sched_getaffinity(0))


def find_memory() -> int:
    """Return how much memory this process may use, in bytes.

    That is the machine's, or less where a container, a job of Slurm or a unit of systemd has a
    limit.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _list_limits():
        with suppress(OSError, ValueError):  # no such file, or "max": there is no limit
            memory = min(memory, int(path.read_text(encoding="utf-8")))
    return memory


def _list_limits() -> Iterator[Path]:
    """Yield the files with the limits of this process's control group and of those around it."""
    with suppress(OSError):
        for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds not in ("", "memory"):  # without a kind: version 2, which has one tree
                continue
            name = "memory.limit_in_bytes" if kinds else "memory.max"
            path = PurePosixPath(group)
            for each in (path, *path.parents):
                yield GROUPS.joinpath(kinds, *each.parts[1:], name)

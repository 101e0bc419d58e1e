"""What machine this is, and how much of it this process may use."""

from __future__ import annotations

import os
import platform
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

OWN_GROUPS: Final = Path("/proc/self/cgroup")
"""Where Linux says in which control groups this process is."""
OWN_USERS: Final = Path("/proc/self/uid_map")
"""Where Linux says which users of the machine those of this container are."""
GROUPS: Final = Path("/sys/fs/cgroup")
"""Where the limits of control groups are."""
CROWDED: Final = 100
"""Where fewer threads are left, something that ended may have ended for want of them."""


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

    These may be fewer than the machine has: in a job of Slurm, or below `taskset`. With a quota of
    processor time, as of a container or a unit of systemd, they are as many as that fills.
    """
    return max(1, int(min([len(os.sched_getaffinity(0)), *_list_quotas()])))


def _list_quotas() -> Iterator[float]:
    """Yield the quotas of processor time, in processors."""
    for path in _list_limits("cpu", "cpu.cfs_quota_us", "cpu.max"):
        with suppress(OSError, ValueError):  # no such file, or "max": there is no quota
            quota, *period = path.read_text(encoding="utf-8").split()
            period = period or [path.with_name("cpu.cfs_period_us").read_text(encoding="utf-8")]
            if int(quota) > 0:  # version 1 has -1 for none
                yield int(quota) / int(period[0])


def find_free_memory() -> int:
    """Return how much memory this process may still take, in bytes; caches count as free."""
    import psutil  # type: ignore[import-untyped]  # a machine that only trains has none

    free = int(psutil.virtual_memory().available)
    for path in _list_limits("memory", "memory.limit_in_bytes", "memory.max"):
        older = path.name == "memory.limit_in_bytes"
        used = path.with_name("memory.usage_in_bytes" if older else "memory.current")
        with suppress(OSError, ValueError):  # no such file, or "max": there is no limit
            most, taken = (int(each.read_text(encoding="utf-8")) for each in (path, used))
            free = min(free, most - taken + _read_cached(path.with_name("memory.stat")))
    return max(0, free)


def _read_cached(statistics: Path) -> int:
    """Return the bytes that Linux gives back before a control group reaches its limit."""
    lines = (line.split() for line in statistics.read_text(encoding="utf-8").splitlines())
    known = {name: int(count) for name, count in lines}
    return known.get("total_inactive_file", known.get("inactive_file", 0))


def find_memory() -> int:
    """Return how much memory this process may use, in bytes.

    That is the machine's, or less where a container, a job of Slurm or a unit of systemd has a
    limit.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _list_limits("memory", "memory.limit_in_bytes", "memory.max"):
        with suppress(OSError, ValueError):  # no such file, or "max": there is no limit
            memory = min(memory, int(path.read_text(encoding="utf-8")))
    return memory


@dataclass(frozen=True)
class ThreadLimit:
    """How many threads may run, those of one thread per process included, and how many do."""

    most: int
    running: int
    name: str
    """What says so: a file of a control group, or `ulimit -u`."""

    @property
    def left(self) -> int:
        """How many more may start."""
        return self.most - self.running


def find_thread_limit() -> ThreadLimit | None:
    """Return the limit of threads that leaves the fewest; None: there is none.

    Linux counts processes and threads together, by control group and by user.
    """
    return min(list_thread_limits(), key=lambda each: each.left, default=None)


def find_crowd() -> str | None:
    """Return in words that hardly any thread can be started now; None: that is not so."""
    limit = find_thread_limit()
    if limit is None or limit.left >= CROWDED:
        return None
    return f"{limit.running:,} processes and threads run of {limit.most:,} that {limit.name} allows"


def list_thread_limits() -> Iterator[ThreadLimit]:
    """Yield the limits of processes and threads, by control group and by user."""
    import psutil

    for path in _list_limits("pids", "pids.max", "pids.max"):
        with suppress(OSError, ValueError):
            running = int(path.with_name("pids.current").read_text(encoding="utf-8"))
            yield ThreadLimit(int(path.read_text(encoding="utf-8")), running, str(path))
    most, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid()
    if most != resource.RLIM_INFINITY and not _is_root():
        found = (each.info for each in psutil.process_iter(["uids", "num_threads"]))
        mine = (
            each["num_threads"] or 0 for each in found if each["uids"] and each["uids"].real == user
        )
        yield ThreadLimit(most, sum(mine), "ulimit -u")


def _is_root() -> bool:
    """Tell whether this is root of the machine, not of a container, who has no such limit."""
    first = OWN_USERS.read_text(encoding="utf-8").split()[:2] if os.getuid() == 0 else []
    return first == ["0", "0"]


def _list_limits(kind: str, older: str, name: str) -> Iterator[Path]:
    """Yield the files with the limits of this process's control group and of those around it.

    `kind` and `older` are the tree and the file of version 1, `name` is the file of version 2,
    which has one tree.
    """
    with suppress(OSError):
        for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, kinds, group = line.split(":", 2)
            if kinds and kind not in kinds.split(","):
                continue
            path = PurePosixPath(group)
            for each in (path, *path.parents):
                yield GROUPS.joinpath(kinds, *each.parts[1:], older if kinds else name)

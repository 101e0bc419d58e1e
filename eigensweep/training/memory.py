"""How a process that trains treats the memory that a training step has given back."""

from __future__ import annotations

import ctypes
import functools
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
"""Parameters of `mallopt`, from glibc's malloc.h."""
KEPT_BYTES = 512 << 20
LARGEST_BYTES = 32 << 20
"""The largest block that glibc lets a process keep."""


@functools.cache
def keep_freed_memory() -> None:
    """Let this process keep up to 512 MB of freed memory, which the next training step needs again.

    glibc gives it back by default, and each of its pages then costs a fault in every step: 40 ms
    for asRNN with 1024 units. Elsewhere than on Linux nothing is done.
    """
    _set({M_MMAP_THRESHOLD: LARGEST_BYTES, M_TRIM_THRESHOLD: KEPT_BYTES})


def use_one_heap() -> None:
    """Let all threads of this process share one heap, also for large blocks, which is kept.

    For a process that only trains, before it has other threads. A call of `keep_freed_memory`
    changes nothing afterwards. By default glibc gives blocks of more than 32 MB back at once, and
    those of other threads in parts of 64 MB. That took a third of the time of LT-RNN over 1,500
    steps; its process holds 705 MB now, and held 598.
    """
    keep_freed_memory()
    _set({M_ARENA_MAX: 1, M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1})


def _set(parameters: Mapping[int, int]) -> None:
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # some C libraries have none
    if mallopt is not None:
        for parameter, value in parameters.items():
            mallopt(parameter, value)


def give_back() -> None:
    """Give all freed memory back to the system, where the C library can."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def private_bytes() -> int | None:
    """Return the memory of this process alone; None where the system does not say.

    Resident pages, without those of files and of memory that is shared with other processes.
    """
    try:
        _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * resource.getpagesize()


def unshared_bytes() -> int | None:
    """Return the memory that this process shares with no other one, in bytes; None: not known.

    Pages that it still shares with the one that it was forked from are left out. The kernel counts
    for some milliseconds.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def limit_device(device: str, share: float) -> None:
    """Let this process take at most a share of its GPU, so that its neighbours have theirs.

    An allocation beyond that raises `torch.OutOfMemoryError` in this process alone.
    """
    if device != "cpu" and share < 1:
        import torch

        torch.cuda.set_per_process_memory_fraction(share)

"""How a process that trains treats the memory that a training step has given back."""

from __future__ import annotations

import ctypes
import functools
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
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
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # some C libraries have none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)

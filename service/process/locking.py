"""One process at a time: a lock that the kernel releases when its holder ends, in whatever way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def hold_alone(path: Path, taken: Exception) -> Iterator[None]:
    """Hold the lock in a file; raise `taken` at once if another process holds it."""
    lock = FileLock(path, mode=0o600, fallback_to_soft=False)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise taken from None
    try:
        yield
    finally:
        lock.release()

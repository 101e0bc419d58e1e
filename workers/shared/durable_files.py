"""Files written so that a process may die at any byte: whole or not at all, by one at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path

LOCK_SECONDS = 60.0
"""How long to wait for another process that changes the same folder; it needs milliseconds."""


class StorageError(RuntimeError):
    """A file of the store could not be written or read; says where and why."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, made if need be. A process that dies, however it dies, lets go.

    Raises:
        StorageError: if the folder cannot be made, or another process holds it for a minute.
    """
    path = folder / "lock"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise storage_error("write", path, error) from error
    try:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                flock(lock, LOCK_EX | LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"another process has held {path} for {LOCK_SECONDS:.0f} s"
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(lock)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content in one act; on failure nothing has changed and nothing is left."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise storage_error("write", path, error) from error


def write_from(path: Path, offset: int, content: bytes) -> None:
    """Write into a file from byte `offset` on, durably; on failure the file ends there."""
    try:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            file.seek(offset)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, offset)
        raise storage_error("write", path, error) from error


def storage_error(act: str, path: Path, error: OSError | ValueError) -> StorageError:
    """Return the error that says what could not be done, where, and the system's reason."""
    cause = error.strerror if isinstance(error, OSError) else None
    return StorageError(f"cannot {act} {path}: {cause or error}")

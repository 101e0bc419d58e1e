"""Files that a process writes whole or not at all, one process at a time, and may die meanwhile.

The lock is `filelock`'s. What is written and replaced here is ours: no library that is kept up
syncs the content to the disk before it replaces a file.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

LOCK_SECONDS = 60.0
"""How long to wait for another process that changes the same folder; it needs milliseconds."""


DISK_ERRORS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.ENODEV, errno.ENXIO}
)
"""The disk is full, broken or gone."""

STORE_ERRORS = DISK_ERRORS | {
    *(errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ETIMEDOUT, errno.ENOLCK),
    *(errno.EFBIG, errno.EMFILE, errno.ENFILE),  # limits of the process, of the machine
}
"""The store, which all trials share, cannot be read or written."""


class StorageError(RuntimeError):
    """A file of the store could not be written or read; says where and why."""


class DamagedError(StorageError):
    """What lies in the store is not what was written; the next attempt goes back behind it."""


class StoreAwayError(StorageError):
    """The store does not answer here, or another one is in its place. No trial is to blame."""


class StoreKeysError(StoreAwayError):
    """The store lets this process in no more, or it has no keys: an administrator mends that."""


@contextmanager
def hold_lock(folder: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock of a folder, which is made if need be; wait so many seconds for it.

    The lock is the kernel's: it ends with the process that holds it, however that ends.

    Raises:
        StoreAwayError: if another process holds it all the time, or the file system gives no
            lock. On a network's file system it may be held by a dead node, whose locks the server
            keeps for a while.
        StorageError: if the folder cannot be made.
    """
    path = folder / "lock"
    lock = FileLock(path, seconds, poll_interval=0.01, fallback_to_soft=False)
    make_folder(folder)
    try:
        lock.acquire()
    except Timeout:
        raise StoreAwayError(f"another process has held {path} for {seconds:.0f} s") from None
    except (OSError, NotImplementedError) as error:  # its file system has no locks, or no answer
        raise StoreAwayError(f"cannot lock {path}: {error}") from error
    try:
        yield
    finally:
        lock.release()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, durably.

    Raises:
        StorageError: if it cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error("write", folder, error) from error
    for each in missing:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has, where it is on no disk of this machine.

    On a disk of its own a file system keeps the order of renames and removals, so that what is left
    after a loss of power is whole, and at most the last commits are missing. On a network's file
    system nothing says so.

    Raises:
        StorageError: if that fails.
    """
    try:
        if has_own_disk(folder):
            return
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # where folders cannot be synced
            raise storage_error("write", folder, error) from error


def has_own_disk(folder: Path) -> bool:
    """Tell whether a folder is on a block device of this machine, as far as its number says."""
    return os.major(folder.stat().st_dev) != 0


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file's content in one act; on failure nothing has changed and nothing is left.

    Raises:
        StorageError: if it cannot be written.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        write_durably(draft, content, path)
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise storage_error("write", path, error) from error
        raise


def write_durably(draft: Path, content: bytes, target: Path) -> None:
    """Write a file and sync it; `target` is for words.

    Raises:
        StorageError: if it cannot be written.
    """
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error("write", target, error) from error


def disk_failure(error: BaseException) -> BaseException | None:
    """Return the error if it is the disk's or the store's, which all share. None for others.

    >>> error = StorageError("cannot write a file")
    >>> error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    >>> disk_failure(error)
    StorageError('cannot write a file')
    """
    each: BaseException | None = error
    known = DISK_ERRORS
    while each is not None:
        if isinstance(each, StoreAwayError | DamagedError):
            return error
        known = STORE_ERRORS if isinstance(each, StorageError) else known
        if isinstance(each, OSError) and each.errno in known:
            return error
        each = each.__cause__ if each.__cause__ is not each else None
    return None


def storage_error(act: str, path: Path, error: OSError | ValueError) -> StorageError:
    """Return the error that says what could not be done, where, and the system's reason."""
    cause = error.strerror if isinstance(error, OSError) else None
    return StorageError(f"cannot {act} {path}: {cause or error}")

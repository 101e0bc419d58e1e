"""Folders that no other user of this machine can enter, change or exchange.

A folder from which a process imports, loads a library, or takes its state is one of these: whoever
can write into it, or into a folder above it, runs code as its user.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

OTHERS = 0o077
"""The rights of the group and of everybody else."""


class UnsafeFolderError(OSError):
    """Another user could change what is in a folder; the message says which, and what to do."""


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, or tighten one that this user has already.

    What lies in a folder that others could read is tightened with it.

    Raises:
        UnsafeFolderError: if the folder or one above it belongs to somebody else, or if others may
            write into it.
        OSError: if it cannot be made.
    """
    folder = folder.absolute()
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(made):
        each.mkdir(mode=0o700, exist_ok=True)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    is_loose = require_private(folder)
    folder.chmod(0o700)
    if is_loose:
        _tighten(folder)


def require_private(folder: Path) -> bool:
    """Return whether others may look into a folder that nobody else can change. Changes nothing.

    Raises:
        UnsafeFolderError: if the folder or one above it belongs to somebody else, or if others may
            write into it.
    """
    folder = folder.absolute()
    for above in dict.fromkeys((*folder.parents, *folder.resolve().parents)):
        _require_safe(above, may_be_roots=True)
    _require_safe(folder, may_be_roots=False)
    return bool(folder.stat().st_mode & OTHERS)


def _require_safe(folder: Path, may_be_roots: bool) -> None:
    found, owners = folder.stat(), {os.geteuid()}
    if may_be_roots:
        owners |= {0, *_hidden_owners()}
    if found.st_uid not in owners:
        raise UnsafeFolderError(
            f"the folder {folder} belongs to user {found.st_uid}, not to user {os.geteuid()}, who "
            "runs this: choose a folder of your own"
        )
    writable = stat.S_IWOTH
    if found.st_gid not in (os.getegid(), 0):  # many people have a group of their own
        writable |= stat.S_IWGRP
    is_sticky = bool(found.st_mode & stat.S_ISVTX) and may_be_roots
    if found.st_mode & writable and not is_sticky:
        raise UnsafeFolderError(
            f"other users may write into {folder} (its mode is {stat.filemode(found.st_mode)}), so "
            f"what is in it may not be yours: look at it, then `chmod go-w {folder}`, or choose a "
            "folder of your own"
        )


def _hidden_owners() -> set[int]:
    """Return the user id that a container shows for users whom it does not know, root included."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return set()
        return {int(Path("/proc/sys/fs/overflowuid").read_text())}
    except (OSError, ValueError):
        return set()


def _tighten(folder: Path) -> None:
    """Take all rights of others from everything of this user in a folder; follow no links."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            with suppress(FileNotFoundError):  # others may work there, such as drivers
                found = os.lstat(path)
                if not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid():
                    os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS)


def require_own(folder: Path, but: str) -> None:
    """Raise if something directly in a folder belongs to somebody else or others may write to it.

    What has the name `but` is not looked at.

    Raises:
        UnsafeFolderError: names what was found.
    """
    for entry in folder.iterdir():
        try:
            found = entry.lstat()
        except FileNotFoundError:  # a file that a driver has written, and replaced since
            continue
        if entry.name == but:
            continue
        if found.st_uid not in (os.geteuid(), 0):
            raise UnsafeFolderError(
                f"{entry} belongs to user {found.st_uid}, not to user {os.geteuid()}, who runs "
                "this: remove it if you do not know it"
            )
        if found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode):
            raise UnsafeFolderError(
                f"every user may write to {entry}, so what is in it may not be yours: look at "
                f"it, then `chmod -R go-rwx {entry}`, or remove it"
            )


@contextmanager
def private_umask() -> Iterator[None]:
    """Give what this process makes meanwhile to this user alone."""
    before = os.umask(OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def keep_secret(path: Path) -> str:
    """Return the secret in a file that only this user can read; make it if it is not there."""
    with suppress(FileNotFoundError):
        if secret := path.read_text():
            return secret
    secret = secrets.token_hex(32)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(secret)
    return secret


def cache_folder() -> Path:
    """Return the folder for files that can be made again, by the XDG base directory rules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eigensweep"

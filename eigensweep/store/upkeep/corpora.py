"""Corpora in the store: a driver puts one there, and each node that lacks it fetches it once.

An archive is named by the SHA-256 of its content, so it is never changed, and a node that has
unpacked it need not ask again. Importing this loads neither torch nor Ray.

Each driver says that it uses an archive before it looks whether the archive is there. Who removes
an archive says so before the last look whether somebody uses it. So of two that do this at once
at least one sees the other: the archive stays, or the driver waits and puts it there again.
"""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import shutil
import tarfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Final

from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StoreAwayError, hold_lock, storage_error

FOLDER: Final = ".corpora"
"""In the store; no experiment is called so."""

USERS: Final = ".corpus-users"
"""In the store: a folder for each archive, with an empty file for each driver that uses it."""

LEAVING: Final = "leaving-"
"""Begins the name of a file there that says: the archive may be about to be removed."""

LEAVING_SECONDS: Final = 60.0
"""How long a driver waits for one who removes an archive, and may have died."""

FETCH_SECONDS: Final = 1800.0
"""How long a process waits for another one of its node that fetches."""


class DamagedArchiveError(StoreAwayError):
    """An archive in the store does not have the digest that its name says."""


def name_user(experiment: str) -> str:
    """Return a name for a driver of an experiment as the user of archives; no two have the same."""
    return f"{experiment}.{secrets.token_hex(4)}"


def publish(store: Store, files: Iterable[Path], data_root: Path, user: str) -> str:
    """Put the files of a corpus into the store, if they are not there; return the archive's name.

    The files lie below `data_root`, or are links from there. The archive stays until the user is
    released.

    Raises:
        StorageError: if a file cannot be read, or the store not be written.
    """
    members, seen = sorted(files), _Digest()
    _pack(members, data_root, seen)
    name = f"{seen.digest.hexdigest()}.tar"
    store.files.write(f"{USERS}/{name}/{user}", b"")
    _wait_for_removers(store, name)
    if name not in store.files.names(FOLDER):
        packed = io.BytesIO()
        _pack(members, data_root, packed)
        if hashlib.sha256(packed.getbuffer()).digest() != seen.digest.digest():
            raise StoreAwayError(f"files of a corpus in {data_root} are being changed")
        store.files.create(f"{FOLDER}/{name}", packed.getvalue())  # another driver may, too
    return name


def list_users(store: Store, experiment: str) -> list[str]:
    """Return the paths in the store by which drivers of an experiment say what they use.

    Raises:
        StorageError: if the store cannot be read.
    """
    return [
        f"{USERS}/{archive}/{user}"
        for archive in store.files.names(USERS)
        for user in store.files.names(f"{USERS}/{archive}")
        if user.rpartition(".")[0] == experiment
    ]


def release(store: Store, users: Iterable[str]) -> None:
    """Take back that drivers use archives; `users` are paths of `list_users`.

    Raises:
        StorageError: if they cannot be removed.
    """
    for path in users:
        store.files.remove(path)


def remove_unused(store: Store) -> list[str]:
    """Remove the archives that nobody uses; return their names.

    Raises:
        StorageError: if the store cannot be read, or one not be removed.
    """
    archives = [name for name in store.files.names(FOLDER) if name.endswith(".tar")]
    return [name for name in archives if not _is_used(store, name) and _remove(store, name)]


def _remove(store: Store, name: str) -> bool:
    """Remove an archive that nobody seems to use; return False if now somebody does."""
    mark = f"{USERS}/{name}/{LEAVING}{secrets.token_hex(4)}"
    store.files.write(mark, b"")
    try:
        if _is_used(store, name):
            return False
        store.files.remove(f"{FOLDER}/{name}")
    finally:
        store.files.remove(mark)
    return True


def _is_used(store: Store, name: str) -> bool:
    return any(
        not user.startswith(LEAVING) and not user.endswith(".tmp")
        for user in store.files.names(f"{USERS}/{name}")
    )


def _wait_for_removers(store: Store, name: str) -> None:
    """Wait until nobody is about to remove an archive; who takes a minute for that has died."""
    deadline = time.monotonic() + LEAVING_SECONDS
    while marks := [u for u in store.files.names(f"{USERS}/{name}") if u.startswith(LEAVING)]:
        if time.monotonic() > deadline:
            release(store, [f"{USERS}/{name}/{mark}" for mark in marks])
        time.sleep(0.1)


def fetch(
    store: Store,
    archive: str,
    folder: Path,
    is_whole: Callable[[Path], bool] = Path.is_dir,
) -> Path:
    """Return a data root below `folder` that has the files of an archive; fetched if need be.

    Processes of one node wait for each other, so one of them fetches. `is_whole` says of a root
    that was fetched before whether its files are still there: caches are cleaned up.

    Raises:
        DamagedArchiveError: if the archive is not what its name says.
        StorageError: if it is not there, or the node's disk cannot be written.
    """
    digest = archive.removesuffix(".tar")
    place = folder / digest
    if is_whole(place):
        return place
    with hold_lock(folder, FETCH_SECONDS):
        if not is_whole(place):
            _unpack(_read(store, archive, digest), place)
    return place


class _Digest(io.RawIOBase):
    """A file of which the digest alone is kept: a corpus may be larger than a driver."""

    def __init__(self) -> None:
        self.digest, self._size = hashlib.sha256(), 0

    def write(self, content: Any) -> int:
        self.digest.update(content)
        self._size += len(content)
        return len(content)

    def tell(self) -> int:
        return self._size


def _pack(files: list[Path], data_root: Path, into: IO[bytes] | _Digest) -> None:
    """Write an archive of files; the same files give the same bytes."""
    with tarfile.open(fileobj=into, mode="w") as archive:
        for path in files:
            try:
                with path.open("rb") as file:
                    member = tarfile.TarInfo(path.relative_to(data_root).as_posix())
                    member.size = os.stat(file.fileno()).st_size
                    archive.addfile(member, file)
            except OSError as error:
                raise storage_error("read", path, error) from error


def _read(store: Store, archive: str, digest: str) -> bytes:
    path = f"{FOLDER}/{archive}"
    try:
        content = store.files.read(path)
    except FileNotFoundError as error:
        raise StoreAwayError(f"the corpus {store.place}/{path} is not there any more") from error
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise DamagedArchiveError(
            f"the corpus {store.place}/{path} arrived here with SHA-256 {found}. Remove it from "
            "the store if it is damaged there: drivers put it there again"
        )
    return content


def _unpack(content: bytes, place: Path) -> None:
    """Unpack an archive; the folder appears when all of it is there."""
    unfinished = place.with_name(f"{place.name}.part")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(unfinished, filter="data")
        shutil.rmtree(place, ignore_errors=True)
        os.replace(unfinished, place)
    except (OSError, tarfile.TarError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        reason = error if isinstance(error, OSError) else ValueError(str(error))
        raise storage_error("unpack", place, reason) from error

"""Corpora in the store: a driver puts one there, and each node that lacks it fetches it once.

An archive is named by the SHA-256 of its content, so it is never changed, and a node that has
unpacked it need not ask again. Importing this loads neither torch nor Ray.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from eigensweep.workers.shared.checkpoints import Store
from eigensweep.workers.shared.durable_files import StoreAwayError, hold_lock, storage_error

FOLDER: Final = ".corpora"
"""In the store; no experiment is called so."""

FETCH_SECONDS: Final = 1800.0
"""How long a process waits for another one of its node that fetches."""


class DamagedArchiveError(StoreAwayError):
    """An archive in the store does not have the digest that its name says."""


def publish(store: Store, files: Iterable[Path], data_root: Path) -> str:
    """Put the files of a corpus into the store, if they are not there; return the archive's name.

    The files lie below `data_root`, or are links from there.

    Raises:
        StorageError: if a file cannot be read, or the store not be written.
    """
    content = _pack(sorted(files), data_root)
    name = f"{hashlib.sha256(content).hexdigest()}.tar"
    if name not in store.file_names(FOLDER):
        store.write_file(f"{FOLDER}/{name}", content)
    return name


def fetch(store: Store, archive: str, folder: Path) -> Path:
    """Return a data root below `folder` that has the files of an archive; fetched if need be.

    Processes of one node wait for each other, so one of them fetches.

    Raises:
        DamagedArchiveError: if the archive is not what its name says.
        StorageError: if it is not there, or the node's disk cannot be written.
    """
    digest = archive.removesuffix(".tar")
    place = folder / digest
    if place.is_dir():
        return place
    with hold_lock(folder, FETCH_SECONDS):
        if not place.is_dir():
            _unpack(_read(store, archive, digest), place)
    return place


def _pack(files: list[Path], data_root: Path) -> bytes:
    """Return an archive of files; the same files give the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path in files:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise storage_error("read", path, error) from error
            member = tarfile.TarInfo(path.relative_to(data_root).as_posix())
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def _read(store: Store, archive: str, digest: str) -> bytes:
    path = f"{FOLDER}/{archive}"
    try:
        content = store.read_file(path)
    except FileNotFoundError as error:
        raise StoreAwayError(f"the corpus {store.place}/{path} is not there any more") from error
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise DamagedArchiveError(
            f"the corpus {store.place}/{path} arrived here with SHA-256 {found}. Remove it from "
            "the store if it is damaged there: the next driver puts it there again"
        )
    return content


def _unpack(content: bytes, place: Path) -> None:
    """Unpack an archive; the folder appears when all of it is there."""
    unfinished = place.with_name(f"{place.name}.part")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(unfinished, filter="data")
        os.replace(unfinished, place)
    except (OSError, tarfile.TarError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        reason = error if isinstance(error, OSError) else ValueError(str(error))
        raise storage_error("unpack", place, reason) from error

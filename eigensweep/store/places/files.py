"""What the store asks of the place that holds its files: a folder, or an object store.

Importing this loads neither torch nor the library of an object store.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn, Protocol

from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.places.object_files import ObjectFiles


class Files(Protocol):
    """Files by path below a place. Picklable; several processes may use it at once.

    All raise StorageError where the place cannot be read or written.
    """

    place: str
    """Where they are, for a person to read: a folder or a URL."""
    look_seconds: float
    """How long a reader relies on having seen a mark or none; 0: a look costs nothing."""

    def read(self, path: str) -> bytes:
        """Return the content of a file; FileNotFoundError if there is none."""

    def open(self, path: str) -> IO[bytes]:
        """Open a file, for who reads it piece by piece; FileNotFoundError if there is none."""

    def size(self, path: str) -> int | None:
        """Return the bytes of a file, None if there is none."""

    def names(self, folder: str) -> list[str]:
        """Return the names of what lies in a folder, sorted; none if there is no such folder."""

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield path and bytes of every file."""

    def write(self, path: str, content: bytes, *, makes_folder: bool = True) -> None:
        """Write a file whole or not at all.

        Folders above it are made; or, without `makes_folder`, FileNotFoundError is raised.
        """

    def create(self, path: str, content: bytes, *, makes_folder: bool = True) -> bool:
        """Write a file that must not exist yet, whole; return whether it did not."""

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""

    def remove_all(self, folder: str) -> None:
        """Remove a folder with all that is in it, if it is there."""

    def fetch(self, path: str, target: Path) -> None:
        """Make a file elsewhere with the same content; FileNotFoundError if there is none.

        In a folder of the same disk it is a link: for files that are never written over. One that
        is there already is of an earlier call, and stays.
        """

    def refresh(self, folder: str) -> None:
        """See what other machines have written to a folder, not what is remembered of it."""

    def fail(self, act: str, path: str, error: Exception) -> NoReturn:
        """Raise the StorageError that says what could not be done, and why."""


def open_files(place: str | Path) -> Files:
    """Return the files in a folder, or in an object store where `place` is a URL."""
    return ObjectFiles(str(place)) if is_url(place) else FolderFiles(place)


def is_url(place: str | Path) -> bool:
    """Tell whether a store's place is a URL, such as `s3://bucket/prefix`, and no folder.

    >>> is_url("s3://lab/sweeps"), is_url("/srv/storage")
    (True, False)
    """
    return "://" in str(place)


def try_out(files: Files) -> str | None:
    """Return what a place cannot do that the store relies on; None: it can do all.

    One file is written for that, and removed.

    Raises:
        StorageError: if it does not answer, or refuses.
    """
    folder, name, content = ".doctor", secrets.token_hex(8), secrets.token_hex(16).encode()
    path = f"{folder}/{name}"
    if not files.create(path, content):
        return f"{files.place}/{path} was not there, and making it was refused"
    try:
        if files.create(path, b""):
            return f"{files.place} writes over an object although asked not to"
        if files.read(path) != content or name not in files.names(folder):
            return f"{files.place} does not show what was just written"
    finally:
        files.remove(path)
    return f"{files.place} does not remove objects" if name in files.names(folder) else None

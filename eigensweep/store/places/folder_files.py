"""The store's files in a folder, which several machines may share.

A file that must not exist yet is written beside its place, synced, and then linked there: a link is
refused where the name exists, on a network's file system, too. Where an answer was lost, the number
of links tells whether it was made. No lock is held, so none is lost by who stands still for long.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final, NoReturn

from eigensweep.store.places import durable_files
from eigensweep.store.places.durable_files import StorageError, StoreAwayError, make_folder

MOST_TRIES: Final = 50
"""How often the removal of a folder begins again because others remove files of it."""

NO_LINKS: Final = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""What a file system answers that knows no links."""


class FolderFiles:
    """Files below one folder; see `Files`."""

    look_seconds = 0.0

    def __init__(self, place: str | Path) -> None:
        self.place, self._root = str(place), Path(place)

    def read(self, path: str) -> bytes:
        try:
            with open(os.path.join(self.place, path), "rb") as file:
                return file.read()
        except FileNotFoundError:
            raise
        except OSError as error:
            self.fail("read", path, error)

    def open(self, path: str) -> IO[bytes]:
        with self._told("read", path) as place:
            return place.open("rb")

    def size(self, path: str) -> int | None:
        with suppress(FileNotFoundError), self._told("read", path) as place:
            return place.stat().st_size
        return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(os.path.join(self.place, folder)))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.fail("read", folder, error)

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield path and bytes of each file; links are not followed, what vanishes is left out."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                place = os.path.join(folder, name)
                with suppress(OSError):
                    seen = os.lstat(place)
                    if stat.S_ISREG(seen.st_mode):
                        yield os.path.relpath(place, self._root), seen.st_size

    def write(self, path: str, content: bytes, *, makes_folder: bool = True) -> None:
        durable_files.write_whole(self._prepare(path, makes_folder), content)

    def create(self, path: str, content: bytes, *, makes_folder: bool = True) -> bool:
        place = self._prepare(path, makes_folder)
        draft = place.with_name(f"{place.name}.{secrets.token_hex(4)}.tmp")
        try:
            durable_files.write_durably(draft, content, place)
            is_made = give_name(draft, place)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        if is_made:
            try:
                durable_files.sync_folder(place.parent)
            except StorageError as error:  # others see the file, and it may last
                raise StoreAwayError(str(error)) from error
        return is_made

    def remove(self, path: str) -> None:
        with self._told("remove", path) as place:
            place.unlink(missing_ok=True)

    def remove_all(self, folder: str) -> None:
        for _ in range(MOST_TRIES):
            with suppress(FileNotFoundError), self._told("remove", folder) as place:
                shutil.rmtree(place)  # ends where another process has removed a file meanwhile
                return
            if not place.exists():
                return
        raise StoreAwayError(f"others change {self.place}/{folder} all the time")

    def fetch(self, path: str, target: Path) -> None:
        with self._told("copy", path) as source:
            target.parent.mkdir(exist_ok=True)
            try:
                os.link(source, target)
            except FileExistsError:
                pass
            except FileNotFoundError:
                raise
            except OSError:  # another file system, or one without links
                _copy(source, target)

    def refresh(self, folder: str) -> None:
        """Make a file there and remove it: a network's file system looks at the folder then."""
        path = f"{folder}/look-{secrets.token_hex(4)}.tmp"
        with suppress(FileNotFoundError), self._told("write", path) as place:
            place.touch()
            place.unlink(missing_ok=True)

    def fail(self, act: str, path: str, error: Exception) -> NoReturn:
        if not isinstance(error, OSError):
            raise error
        raise durable_files.storage_error(act, self._root / path, error) from error

    def _prepare(self, path: str, makes_folder: bool) -> Path:
        """Return the place of a file whose folder is there, made if need be."""
        place = self._root / path
        if makes_folder:
            make_folder(place.parent)
        elif not place.parent.exists():
            raise FileNotFoundError(place.parent)
        return place

    @contextmanager
    def _told(self, act: str, path: str) -> Iterator[Path]:
        """Lend the path of a file; what fails but for its absence becomes a StorageError."""
        try:
            yield self._root / path
        except FileNotFoundError:
            raise
        except OSError as error:
            self.fail(act, path, error)


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        target.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):  # the error names the source
            raise durable_files.storage_error("write", target, error) from error
        raise


def give_name(draft: Path, place: Path) -> bool:
    """Give a draft its name, also where there are no links; return whether nobody else had it.

    Raises:
        StoreAwayError: if nobody knows.
    """
    try:
        os.link(draft, place)
        return True
    except OSError as error:
        with suppress(OSError):
            if draft.stat().st_nlink > 1:  # the answer was lost, and asked for again
                return True
        if isinstance(error, FileExistsError | FileNotFoundError):
            return False  # whoever was first may have removed the draft, too
        if error.errno not in NO_LINKS:
            raise StoreAwayError(f"cannot write {place}: {error.strerror or error}") from error
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(draft, place)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreAwayError(f"cannot write {place}: {error.strerror or error}") from error
    return True

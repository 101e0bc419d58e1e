"""The files at a path: a single file, those in a folder, and the members of archives."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


class UnreadableError(ValueError):
    """A file or an archive cannot be read to its end; the message says which and why."""


@dataclass(frozen=True)
class Offered:
    """One file, on disk or in an archive. Call `read` before asking for the next one."""

    place: str
    """For messages: its path, or the path of its archive and its name there."""
    name: str
    size: int
    """The number of bytes that `read` returns."""
    read: Callable[[], bytes]
    """Returns the content; raises UnreadableError."""


def find_files(path: Path, refuse: Callable[[str], None]) -> Iterator[Offered]:
    """Yield every file at or below a path, and the members of archives instead of the archives.

    Nothing is unpacked to disk. `refuse` is called with a message for each file or archive that
    cannot be read to its end.

    Raises:
        OSError: if there is nothing at `path`.
    """
    path.stat()
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        try:
            yield from _within(file)
        except UnreadableError as error:
            refuse(str(error))


def _within(path: Path) -> Iterator[Offered]:
    members = _members(path)
    while True:
        with _translate_errors(path):
            member = next(members, None)
        if member is None:
            return
        yield replace(member, read=_guard(path, member.read))


def _guard(path: Path, read: Callable[[], bytes]) -> Callable[[], bytes]:
    def read_guarded() -> bytes:
        with _translate_errors(path):
            return read()

    return read_guarded


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    """Raise UnreadableError in place of every error that a damaged file can cause."""
    try:
        yield
    except UnreadableError:
        raise
    except OSError as error:
        if error.errno is None:  # so gzip and bz2 report damage
            raise UnreadableError(f"{path} is damaged ({error})") from error
        raise UnreadableError(f"{path} cannot be read ({error.strerror})") from error
    except _BREAKAGES as error:
        raise UnreadableError(f"{path} is damaged ({error})") from error


_BREAKAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError),
    *(ValueError, OverflowError, struct.error),  # names and numbers in a damaged table of contents
    *(RuntimeError, NotImplementedError),  # an encrypted member; a compression that is not known
    MemoryError,  # a name of gigabytes, packed
)


def _members(path: Path) -> Iterator[Offered]:
    if not path.is_file():
        raise UnreadableError(f"{path} is neither a file nor a folder")
    if zipfile.is_zipfile(path):
        yield from _zip_members(path)
    elif _is_tar(path):
        yield from _tar_members(path)
    elif path.name.lower().endswith(ARCHIVES):
        raise UnreadableError(f"{path} is damaged or not an archive")
    else:
        yield Offered(str(path), path.name, path.stat().st_size, path.read_bytes)


def _is_tar(path: Path) -> bool:
    try:
        return tarfile.is_tarfile(path)
    except _BREAKAGES:  # a compressed file that ends before its first member
        return False


def _zip_members(path: Path) -> Iterator[Offered]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename and not member.is_dir():

                def read(member: zipfile.ZipInfo = member) -> bytes:
                    with archive.open(member) as file:  # no more is unpacked than the archive says
                        return file.read(member.file_size + 1)

                name = Path(member.filename).name
                yield Offered(f"{path}: {member.filename}", name, member.file_size, read)


def _tar_members(path: Path) -> Iterator[Offered]:
    with tarfile.open(path) as archive:
        for member in archive:
            if member.isfile():

                def read(member: tarfile.TarInfo = member) -> bytes:
                    opened = archive.extractfile(member)
                    assert opened is not None
                    content = opened.read()
                    if len(content) != member.size:
                        raise EOFError(f"{member.name} is cut off")
                    return content

                name = Path(member.name).name
                yield Offered(f"{path}: {member.name}", name, member.size, read)

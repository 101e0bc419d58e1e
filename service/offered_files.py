"""The files that a path offers: itself, those in a folder, and the members of archives."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")


class DamagedArchiveError(ValueError):
    """An archive that cannot be read to its end; says which and why."""


@dataclass(frozen=True)
class Offered:
    """One file, wherever it is; `read` is to be called before the next one is asked for."""

    place: str
    """As a person finds it: a path, for a member of an archive followed by its name there."""
    name: str
    size: int
    """Bytes that `read` gives."""
    read: Callable[[], bytes]


def offered_by(path: Path) -> Iterator[Offered]:
    """Yield every file at or below a path; of an archive its members. Nothing is unpacked to disk.

    Raises:
        OSError: if there is nothing at `path`, or it may not be read.
        DamagedArchiveError: once the members that could be read were offered.
    """
    if not path.is_dir():
        yield from _file(path)
        return
    damaged: DamagedArchiveError | None = None
    for found in sorted(p for p in path.rglob("*") if p.is_file()):
        try:
            yield from _file(found)
        except DamagedArchiveError as error:
            damaged = damaged or error
    if damaged is not None:
        raise damaged


def _file(path: Path) -> Iterator[Offered]:
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        yield from _guarded(path, _zip_members(path))
    elif tarfile.is_tarfile(path):
        yield from _guarded(path, _tar_members(path))
    elif path.name.lower().endswith(ARCHIVES):
        raise DamagedArchiveError(f"{path} is damaged, or no archive")
    else:
        yield Offered(str(path), path.name, size, path.read_bytes)


def _guarded(path: Path, members: Iterator[Offered]) -> Iterator[Offered]:
    """Turn what a damaged archive raises, while it is walked or read, into one error."""

    def words(error: Exception) -> DamagedArchiveError:
        return DamagedArchiveError(f"{path} is damaged ({error})")

    def guarded(read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except _BREAKAGES as error:
            raise words(error) from error

    while True:
        try:
            member = next(members, None)
        except _BREAKAGES as error:
            raise words(error) from error
        if member is None:
            return
        read = member.read
        yield Offered(member.place, member.name, member.size, lambda read=read: guarded(read))  # type: ignore[misc]


_BREAKAGES = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError),
    *(RuntimeError, NotImplementedError),  # an encrypted member; a compression that is not known
)


def _zip_members(path: Path) -> Iterator[Offered]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():

                def read(member: zipfile.ZipInfo = member) -> bytes:
                    return archive.read(member)

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

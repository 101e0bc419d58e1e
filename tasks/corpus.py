"""Find the files of a corpus under the data root, and check that they are the right ones.

Nothing is downloaded here. The data root is a folder with one folder for each corpus. A file may
also be there in another form, such as a gzip file, if that form holds the same bytes.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


class CorpusMissingError(ValueError):
    """A corpus is missing. The message says which path was tried and how to get the files."""


class CorpusMismatchError(CorpusMissingError):
    """A file has the expected name, but other contents, or may not be read."""


@dataclass(frozen=True)
class Form:
    """One form in which a file may be stored."""

    path: str
    """Relative to the data root."""
    size: int | None = None
    """Bytes; None if they vary, or are those of the contents."""
    decode: Callable[[bytes], bytes] = bytes
    """Turns stored bytes into the contents. The message of its ValueError follows the file's name:
    "is damaged"."""


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus."""

    folder: str
    files: Mapping[str, tuple[int, str | None]]
    """Name to the size of the contents in bytes and their digest: SHA-256, or `md5:` and an MD5, or
    None where none was published."""
    origin: str
    """Where a person gets the files."""
    other_forms: Mapping[str, tuple[Form, ...]] = field(default_factory=dict)
    """Name to the forms that are accepted if `folder` has no such file."""
    inspect: Callable[[bytes], object] = bytes
    """Raises ValueError, with a sentence about it, where contents without a digest are others."""

    def check(self, data_root: Path | None) -> None:
        """Raise CorpusMissingError unless every file is there with its size. Reads no file."""
        for name in self.files:
            self._find(name, data_root)

    def paths(self, data_root: Path | None) -> list[Path]:
        """Return the files, each in the form in which it is there.

        Raises:
            CorpusMissingError: as `check` does.
        """
        return [self._find(name, data_root)[0] for name in self.files]

    def find(self, data_root: Path | None) -> Path:
        """Return the folder of the first file.

        Raises:
            CorpusMissingError: as `check` does.
        """
        self.check(data_root)
        return self._find(next(iter(self.files)), data_root)[0].parent

    def verify(self, data_root: Path | None) -> None:
        """Raise CorpusMissingError unless every file has the expected contents. Reads all files."""
        for name in self.files:
            self.read(name, data_root)

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(size for size, _ in self.files.values())

    def read(self, name: str, data_root: Path | None) -> bytes:
        """Return the contents of a file. A process checks their digest once.

        Raises:
            CorpusMissingError: if the file is missing, or has other contents than expected.
        """
        path, decode = self._find(name, data_root)
        with expected_there(self._instruction(data_root)):
            stored, stamp = path.read_bytes(), (path, path.stat().st_mtime_ns)
        try:
            content = decode(stored)
        except ValueError as error:
            raise self._mismatch(f"{path} {error}", data_root) from error
        size, expected = self.files[name]
        if stamp not in _verified:
            if len(content) != size:
                raise self._mismatch(
                    f"{path} holds {len(content):,} bytes; expected {size:,}", data_root
                )
            if (problem := find_problem(content, expected, self)) is not None:
                raise self._mismatch(f"{path} {problem}", data_root)
            _verified.add(stamp)
        return content

    def _find(self, name: str, data_root: Path | None) -> tuple[Path, Callable[[bytes], bytes]]:
        if data_root is None:
            raise CorpusMissingError(
                f"the corpus '{self.folder}' is needed, but no data root is set "
                f"(EIGENSWEEP_DATA_ROOT). {self._instruction(None)}"
            )
        plain = Form(f"{self.folder}/{name}", self.files[name][0])
        for form in (plain, *self.other_forms.get(name, ())):
            path = data_root / form.path
            with expected_there(self._instruction(data_root)):
                if not path.is_file():
                    continue
                found, size = path.stat().st_size, form.size
            if size is None and form.decode is bytes:
                size = plain.size
            if size is not None and size != found:
                raise self._mismatch(f"{path} has {found:,} bytes; expected {size:,}", data_root)
            return path, form.decode
        raise CorpusMissingError(
            f"there is no {data_root / plain.path}. {self._instruction(data_root)}"
        )

    def _mismatch(self, words: str, data_root: Path | None) -> CorpusMismatchError:
        return CorpusMismatchError(f"{words}. {self._instruction(data_root)}")

    def _instruction(self, data_root: Path | None) -> str:
        root = "the folder that it names" if data_root is None else str(data_root)
        return (
            f"`eigensweep data fetch {self.folder}` gets it. "
            f"Put {', '.join(self.files)} into '{self.folder}' under {root}: {self.origin}"
        )


@contextmanager
def expected_there(instruction: str) -> Iterator[None]:
    """Say in words that files vanish after they were found, or may not be read.

    Raises:
        CorpusMissingError: if one vanishes; `instruction` says how a person gets the corpus.
        CorpusMismatchError: if one may not be read.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise CorpusMissingError(f"there is no {error.filename} any more. {instruction}") from error
    except PermissionError as error:
        raise CorpusMismatchError(
            f"{error.filename} cannot be read: {error.strerror}. Give the user who runs this the "
            "right to read it"
        ) from error


def find_problem(content: bytes, expected: str | None, corpus: Corpus) -> str | None:
    """Return what is wrong with the contents of a file, to follow its name; None if nothing is."""
    if expected is None:
        try:
            corpus.inspect(content)
        except ValueError as error:
            return f"holds something else: {error}"
        return None
    found = digest_like(expected, content)
    if found == expected:
        return None
    return f"has {name_digest(found)}; expected {expected.removeprefix(MD5)}"


def digest_like(expected: str, content: bytes) -> str:
    """Return the digest of contents by the algorithm of another digest."""
    if expected.startswith(MD5):
        return MD5 + hashlib.md5(content, usedforsecurity=False).hexdigest()
    return hashlib.sha256(content).hexdigest()


def name_digest(digest: str | None) -> str:
    """Return a digest as a message has it.

    >>> name_digest("md5:c99c"), name_digest("6d95"), name_digest(None)
    ('MD5 c99c', 'SHA-256 6d95', 'no published digest')
    """
    if digest is None:
        return "no published digest"
    bare = digest.removeprefix(MD5)
    return f"SHA-256 {digest}" if bare == digest else f"MD5 {bare}"


MD5 = "md5:"


def unpack(content: bytes) -> bytes:
    """Return the contents of a gzip file.

    Raises:
        ValueError: if it is not a complete gzip file.
    """
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"is damaged, or no gzip file ({error})") from error


_verified: set[tuple[Path, int]] = set()

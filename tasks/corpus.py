"""Corpora under the data root: where a file is expected, and whether it is the right one.

Nothing is downloaded here. The data root is a folder with one folder for each corpus.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path


class CorpusMissingError(ValueError):
    """A corpus is not there; says what was tried and what to put where."""


class CorpusMismatchError(CorpusMissingError):
    """A file has the corpus's name and other contents."""


@dataclass(frozen=True)
class Corpus:
    """The files of a corpus, each with its size in bytes and its SHA-256."""

    folder: str
    files: dict[str, tuple[int, str]]
    origin: str
    """Where a person gets the files."""

    def check(self, data_root: Path | None) -> None:
        """Raise CorpusMissingError unless every file is there at its size. Quick: reads nothing."""
        for name in self.files:
            self._path(name, data_root)

    def read(self, name: str, data_root: Path | None) -> bytes:
        """Return the contents of a file; its digest is checked once in a process.

        Raises:
            CorpusMissingError: if the file is not there, or is another one than expected.
        """
        path = self._path(name, data_root)
        content = path.read_bytes()
        stamp = (path, path.stat().st_mtime_ns)
        if stamp not in _verified:
            found, expected = hashlib.sha256(content).hexdigest(), self.files[name][1]
            if found != expected:
                raise CorpusMismatchError(
                    f"{path} has SHA-256 {found}; expected {expected}. "
                    f"{self._instruction(data_root)}"
                )
            _verified.add(stamp)
        return content

    def _path(self, name: str, data_root: Path | None) -> Path:
        if data_root is None:
            raise CorpusMissingError(
                f"the corpus '{self.folder}' is needed and no data root is set "
                f"(EIGENSWEEP_DATA_ROOT). {self._instruction(None)}"
            )
        path, size = data_root / self.folder / name, self.files[name][0]
        if not path.is_file():
            raise CorpusMissingError(f"there is no {path}. {self._instruction(data_root)}")
        found = path.stat().st_size
        if found != size:
            raise CorpusMismatchError(
                f"{path} has {found:,} bytes; expected {size:,}. {self._instruction(data_root)}"
            )
        return path

    def _instruction(self, data_root: Path | None) -> str:
        root = "the folder that it names" if data_root is None else str(data_root)
        return f"Put {', '.join(self.files)} into '{self.folder}' under {root}: {self.origin}"


_verified: set[tuple[Path, int]] = set()

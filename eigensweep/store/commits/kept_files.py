"""What an attempt keeps beside its checkpoints: weights of the best evaluation, spectra, prints.

No head names these files: each attempt has its own, and those of the last attempt that has one
count. So who comes late writes over nothing of its successors.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final

from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.commits.heads import Heads
from eigensweep.store.commits.old_heads import is_whole_archive
from eigensweep.store.places.durable_files import DamagedError
from eigensweep.store.places.files import Files

BEST: Final = "best.pt"
"""The weights of the best evaluation."""
PRINTED: Final = "printed.txt"
"""What the attempt's process has printed, at the key of the trial's first seed."""

StateDict = dict[str, Any]
"""What training goes on from: nested dicts, lists and tuples of tensors and plain values."""

KEPT_FILE: Final = re.compile(r"(?P<stem>[^.]+?)(?:-(?P<attempt>\d+))?(?P<kind>\.\w+)")
"""The name of a file that an attempt keeps; older versions did not say which attempt."""


class KeptFiles:
    """The files that attempts keep at a key, by the name that was given; with a folder or none."""

    def __init__(self, files: Files, heads: Heads) -> None:
        self._files, self._heads = files, heads

    def write(
        self, key: str, attempt: int, name: str, content: bytes, *, may_be_first: bool = False
    ) -> None:
        """Keep a file; `name` may have a folder before it, such as `spectra/000000050.json`.

        `may_be_first` says that the attempt may not have begun at the key yet.

        Raises:
            StaleAttemptError: if a higher attempt has begun, or what had begun was deleted.
            StorageError: if it cannot be written.
        """
        # A successor may begin between the look and the write, so each attempt has its own files.
        head = self._heads.read(key)
        head.check_attempt(key, attempt)
        if head.attempt == 0 and not may_be_first:
            raise StaleAttemptError(f"nothing has begun at {key}, or it was deleted since")
        stem, _, kind = name.rpartition(".")
        self._files.write(f"{key}/{stem}-{attempt}.{kind}", content)

    def read(self, key: str, name: str) -> bytes:
        """Return the content of a file; of several attempts the last one's.

        Raises:
            FileNotFoundError: if there is none.
            StorageError: if it cannot be read.
        """
        return self._files.read(self._find(key, name))

    def open(self, key: str, name: str) -> IO[bytes]:
        """Open the same file, for who reads it piece by piece; raises as `read` does."""
        return self._files.open(self._find(key, name))

    def fetch(self, key: str, name: str, scratch: Path) -> Path:
        """Make the same file in a folder, under the name that was given; raises as `read` does.

        It may be a link: nobody may write into it.
        """
        path = scratch / Path(name).name
        self._files.fetch(self._find(key, name), path)
        return path

    def names(self, key: str, folder: str) -> list[str]:
        """Return the names of what was kept in a folder of a key, sorted.

        Raises:
            StorageError: if it cannot be read.
        """
        return sorted(find_kept(self._files.names(f"{key}/{folder}")))

    def best(self, key: str) -> StateDict | None:
        """Return what was kept of the best evaluation: `step`, `value`, `weights`; None: nothing.

        Raises:
            DamagedError: if it is not what was written.
            StorageError: if it cannot be read.
        """
        import torch

        try:
            content = self.read(key, BEST)
        except FileNotFoundError:
            return None
        if not is_whole_archive(content):
            raise DamagedError(f"the best weights in {self._files.place}/{key} are damaged")
        found: StateDict = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        return found

    def has_best(self, key: str) -> bool:
        """Return whether the weights of the best evaluation were kept; reads none."""
        return BEST in find_kept(self._files.names(key))

    def _find(self, key: str, name: str) -> str:
        """Return the path in the store of the last attempt's file."""
        folder, _, file = name.rpartition("/")
        place = f"{key}/{folder}" if folder else key
        found = find_kept(self._files.names(place)).get(file)
        if not found:
            raise FileNotFoundError(f"{self._files.place}/{key}/{name}")
        return f"{place}/{found[-1]}"


def find_kept(names: Iterable[str]) -> dict[str, list[str]]:
    """Return, for each name that was given, its files: the last attempt's last.

    >>> find_kept(["best-10.pt", "best-9.pt", "000000050-2.json"])
    {'best.pt': ['best-9.pt', 'best-10.pt'], '000000050.json': ['000000050-2.json']}
    """
    found: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if parts := KEPT_FILE.fullmatch(name):
            of = found.setdefault(f"{parts['stem']}{parts['kind']}", [])
            of.append((int(parts["attempt"] or 0), name))
    return {given: [name for _, name in sorted(files)] for given, files in found.items()}

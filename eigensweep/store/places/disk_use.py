"""How much of the disk folders and experiments take."""

from __future__ import annotations

import re
import stat
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eigensweep.store.places.files import open_files

WEIGHTS: Final = re.compile(r"best(-\d+)?\.pt")
"""Files of weights of best evaluations; in an object store each attempt has its own."""


@dataclass(frozen=True)
class StoreUse:
    """Bytes that the store holds of one experiment."""

    checkpoints: int = 0
    weights: int = 0
    """Weights of best evaluations."""
    curves: int = 0
    """Curves, spectra, and the files of the report."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.checkpoints + self.weights + self.curves


def measure(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; 0 if there is none.

    Links are not followed, and what vanishes meanwhile does not count.
    """
    with suppress(OSError):
        if stat.S_ISREG((seen := path.lstat()).st_mode):
            return seen.st_size
    return sum(size for _, size in open_files(path).sizes())


def measure_store(place: str | Path) -> dict[str, StoreUse]:
    """Return what each folder of the store takes: that of an experiment by its id.

    Raises:
        StorageError: if it is an object store that does not answer.
    """
    files: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size in open_files(place).sizes():
        experiment, slash, rest = path.partition("/")
        if slash:
            files[experiment].append((rest.rpartition("/")[2], size))
    return {experiment: _add_up(found) for experiment, found in sorted(files.items())}


def _add_up(files: Iterable[tuple[str, int]]) -> StoreUse:
    """Return what files take, given with name and size."""
    checkpoints = weights = curves = 0
    for name, size in files:
        if name.startswith("step-"):
            checkpoints += size
        elif WEIGHTS.fullmatch(name):
            weights += size
        else:
            curves += size
    return StoreUse(checkpoints, weights, curves)

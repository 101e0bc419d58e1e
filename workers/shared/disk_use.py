"""How much of the disk folders and experiments take."""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from eigensweep.workers.shared.checkpoints import is_url

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
    return sum(size for _, size in _walk(path))


def measure_store(place: str | Path) -> dict[str, StoreUse]:
    """Return what each experiment in the store takes, by its id.

    Raises:
        StorageError: if it is an object store that does not answer.
    """
    if is_url(place):
        return _measure_objects(str(place))
    found: dict[str, StoreUse] = {}
    storage = Path(place)
    with suppress(FileNotFoundError):
        for folder in sorted(storage.iterdir()):
            if folder.is_dir() and not folder.name.startswith("."):
                found[folder.name] = _add_up(_walk(folder))
    return found


def _measure_objects(url: str) -> dict[str, StoreUse]:
    from eigensweep.workers.shared.object_store import ObjectStore

    files: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for path, size in ObjectStore(url).list_sizes():
        experiment, slash, rest = path.partition("/")
        if slash and not experiment.startswith("."):
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


def _walk(path: Path) -> list[tuple[str, int]]:
    """Return name and size of each file at or below a path."""
    places = [(path.name, str(path))]
    for place, _, files in os.walk(path):
        places += [(name, os.path.join(place, name)) for name in files]
    found = []
    for name, place in places:
        with suppress(OSError):
            seen = os.lstat(place)
            if stat.S_ISREG(seen.st_mode):
                found.append((name, seen.st_size))
    return found

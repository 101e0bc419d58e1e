"""The packages that add models and tasks: where their files are, and digests of them.

Nothing is imported here: a package may fail at that, or take long.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

SUFFIXES = (".py", ".cpp", ".h", ".cu", ".yaml")
"""Endings of the files of Eigensweep whose content decides a trial's numbers."""
NO_CODE = (".pyc", ".pyo", ".so", ".pyd", ".dylib", ".dll", ".o", ".md", ".rst")
"""Endings of the files of other packages that decide nothing: what was made of their sources, and
words. All others count, since a package may read its settings or first values from any of them."""
GROUPS = ("eigensweep.models", "eigensweep.tasks")
"""Entry points by which packages add models and tasks."""
LARGE = 2**20
"""Bytes from which on a file that looks the same is not read again by the same process."""


@cache
def find_plugins() -> tuple[EntryPoint, ...]:
    """Return the entry points of models and tasks, as they were when this was first called.

    To read those of all packages takes 5 ms; a process that is forked for a trial has them from
    where it was forked.
    """
    found = entry_points()
    return tuple(entry for group in GROUPS for entry in found.select(group=group))


def find_package(package: str) -> Path | None:
    """Return a package's folder, or the file of one that is a file; None if there is none."""
    return next(iter(_find_places(package)), None)


def _find_places(package: str) -> list[Path]:
    """Return the folders of a package, of which one without `__init__.py` may have several."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return []  # the registry leaves it out, and says why
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [Path(each) for each in spec.submodule_search_locations]
    return [Path(spec.origin)] if spec.origin is not None and Path(spec.origin).is_file() else []


def digest_package(package: str) -> dict[str, str]:
    """Return a digest of each file of a package, by its path inside; of two the first is loaded."""
    files: dict[Path, Path] = {}
    for place in _find_places(package):
        if place.is_file():
            files[Path(place.name)] = place
        for path in _walk(place):
            files.setdefault(path.relative_to(place), path)
    return digest_files({p.as_posix(): path for p, path in files.items() if _is_code(p)})


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, each folder once; of linked folders, which may be data, code.

    Data that decides numbers lies in the package itself.
    """
    seen, inside = set[Path](), folder.resolve()
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [each for each in sorted(folders) if not each.startswith((".", "__pycache__"))]
        if (real := Path(place).resolve()) in seen:
            folders.clear()
            continue
        seen.add(real)
        is_linked = not real.is_relative_to(inside)
        paths = (Path(place, name) for name in sorted(names))
        yield from (p for p in paths if p.is_file() and (not is_linked or p.suffix in SUFFIXES))


def _is_code(path: Path) -> bool:
    """Tell whether a file of a package may decide numbers, by its path inside."""
    is_made = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
    return not is_made and path.suffix not in NO_CODE and path.name != "py.typed"


def digest_files(files: Mapping[str, Path]) -> dict[str, str]:
    """Return a digest of each file, by its name."""
    return {name: _digest_file(path)[:16] for name, path in sorted(files.items())}


def _digest_file(path: Path) -> str:
    found = path.stat()
    if found.st_size < LARGE:
        return _hash(path)
    return _digest_large(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@lru_cache(maxsize=4096)
def _digest_large(path: Path, *looks: int) -> str:
    """Return the digest of a large file: read once, as long as it looks the same."""
    return _hash(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_all(parts: Mapping[str, str]) -> str:
    """Return one digest of names and values."""
    lines = "".join(f"{name}\0{value}\n" for name, value in sorted(parts.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:16]

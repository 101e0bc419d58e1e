"""Compiles this repository's modules, and its tests as pytest compiles them.

The processes of pytest that `make test` starts collect all tests at the same time. In a fresh copy,
each of them would compile everything itself, which takes it 10 s of a processor.
"""

from __future__ import annotations

from compileall import compile_file
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from _pytest.assertion import rewrite

ROOT: Final = Path(__file__).parents[1]
FOLDERS: Final = (
    *("eigensweep", "models", "tasks", "search_spaces", "workers", "service"),
    *("bench", "tests"),
)
CONFIG: Final[Any] = SimpleNamespace(getini=lambda name: False)
STATE: Final[Any] = SimpleNamespace(trace=lambda words: None)


def compile_one(path: Path) -> None:
    """Compile a module; pytest has files of its own for those whose assertions it explains."""
    if path.name != "conftest.py" and not path.name.startswith("test_"):
        compile_file(path, quiet=2)
        return
    folder = rewrite.get_cache_dir(path)
    compiled = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if rewrite._read_pyc(path, compiled) is None and rewrite.try_makedirs(folder):
        digest, code = rewrite._rewrite_test(path, CONFIG)
        rewrite._write_pyc(STATE, code, digest, compiled)


def main() -> None:
    """Compile what is not compiled yet."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_one, paths, chunksize=8))


if __name__ == "__main__":
    main()

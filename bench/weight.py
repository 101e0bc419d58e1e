"""Count how much code there is, how its folders hang together, and what of others it relies on.

`python -m bench.weight [--at REVISION]` prints totals, and a row for each folder with rooms:

- lines, and code: lines that are neither docstring, import, comment nor blank;
- rooms, the files and folders directly in it; arrows, the pairs of rooms of which one imports the
  other; floors, the longest chain of rooms along arrows; circles, groups of rooms that import each
  other, each of which is one floor.

Then it lists names of classes that stand for two things, and the private members of Ray, MLflow and
Optuna that are used, by name.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import grimp

from bench.report import say, table

ROOT = Path(__file__).parents[1]
HOUSE = ("service", "workers")
"""The folders of the total."""
FOLDERS = (*HOUSE, "eigensweep")
"""Where names and private members are counted; links in `eigensweep` are not followed."""
SOURCE = (*FOLDERS, "search_spaces", "models", "tasks")
"""The folders of all source."""
PACKAGES = ("ray", "mlflow", "optuna")
OTHERS = frozenset(
    ("_exit", "_current_frames", "_C", "_cuda_endAllocateToPool", "_cuda_releasePool")
)
"""Private names of other packages: what Python describes of `os` and `sys`, and of PyTorch what a
test with a GPU runs."""
HEADINGS = {
    "folder": "folder",
    **{name: name for name in ("files", "lines", "code", "rooms", "floors", "arrows", "circles")},
}


def find_files(root: Path, folders: Iterable[str] = FOLDERS) -> list[Path]:
    """Return the files of Python in some folders of a checkout."""
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


def count(files: Iterable[Path]) -> dict[str, int]:
    """Return how many files, lines and lines of code there are."""
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = sum(len(text.splitlines()) for text in texts)
    return {"files": len(texts), "lines": lines, "code": sum(map(count_code, texts))}


def count_code(text: str) -> int:
    """Return the lines of a file that are neither docstring, import, comment nor blank."""
    others: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                others.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(n not in others and bool(line) and not line.startswith("#") for n, line in lines)


def read_imports(root: Path, package: str = "eigensweep") -> grimp.ImportGraph:
    """Return what imports what in a package of a checkout. None of it is imported."""
    sys.path.insert(0, str(root))
    try:
        return grimp.build_graph(package, cache_dir=None)
    finally:
        sys.path.remove(str(root))


def draw(graph: grimp.ImportGraph, folder: str) -> dict[str, int]:
    """Return how many rooms, floors, arrows and circles a folder has; its name has dots."""
    rooms = graph.find_children(folder)
    depth = folder.count(".") + 2
    arrows: dict[str, set[str]] = {}
    for room in rooms:
        modules = (room, *graph.find_descendants(room))
        used = set[str]().union(*map(graph.find_modules_directly_imported_by, modules))
        arrows[room] = {".".join(each.split(".")[:depth]) for each in used} & rooms - {room}
    reached = {room: {room} for room in rooms}
    for _ in rooms:  # a chain has no more links
        for room in rooms:
            reached[room].update(*(reached[other] for other in arrows[room]))
    circles = {room: frozenset(r for r in reached[room] if room in reached[r]) for room in rooms}

    @cache
    def find_height(circle: frozenset[str]) -> int:
        below = {circles[other] for room in circle for other in arrows[room]} - {circle}
        return 1 + max(map(find_height, below), default=0)

    return {
        "rooms": len(rooms),
        "floors": max(map(find_height, circles.values()), default=0),
        "arrows": sum(map(len, arrows.values())),
        "circles": sum(len(circle) > 1 for circle in {*circles.values()}),
    }


def find_twice(root: Path, folders: Iterable[str] = FOLDERS) -> dict[str, int]:
    """Return the names of several classes, and of how many."""
    texts = (path.read_text(encoding="utf-8") for path in find_files(root, folders))
    names = Counter(n for text in texts for n in re.findall(r"^class (\w+)", text, re.MULTILINE))
    return {name: number for name, number in sorted(names.items()) if number > 1}


def find_private(root: Path, folders: Iterable[str] = FOLDERS) -> set[str]:
    """Return private attributes that the code reads and does not define, and private imports."""
    own: set[str] = set()
    used: set[str] = set()
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in find_files(root, folders))
    for node in (node for tree in trees for node in ast.walk(tree)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                own.add(name)
            case ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                own.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                used.add(name)
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PACKAGES:
                is_private = "._" in module or ".generated" in module
                names = [each.name for each in node.names]
                used.update(name for name in names if is_private or name.startswith("_"))
    return used - own - {"_private", "RayActorManager"} - OTHERS


@contextmanager
def check_out(revision: str) -> Iterator[Path]:
    """Make the files of a revision in a folder, which is removed afterwards."""
    told = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
    with tempfile.TemporaryDirectory(prefix="weight-") as folder:
        with tarfile.open(fileobj=io.BytesIO(told.stdout)) as files:
            files.extractall(folder, filter="data")
        yield Path(folder)


def tell(root: Path) -> None:
    """Print what is counted in a checkout."""
    graph = read_imports(root)
    tops = [root / name for name in HOUSE]
    tops += sorted(p for p in (root / "eigensweep").iterdir() if p.is_dir() and not p.is_symlink())
    totals = {"all source": SOURCE, " + ".join(HOUSE): HOUSE}
    rows = [{"folder": name, **count(find_files(root, fs))} for name, fs in totals.items()]
    for folder in (f for top in tops for f in (top, *sorted(top.rglob("*")))):
        parts = folder.relative_to(root).parts
        name = ".".join(("eigensweep", *parts[parts[0] == "eigensweep" :]))
        if folder.is_dir() and name in graph.modules:
            size = count(sorted(folder.rglob("*.py")))
            rows.append({"folder": "/".join(parts), **size, **draw(graph, name)})
    say(table(rows, HEADINGS))
    twice, private = find_twice(root), sorted(find_private(root))
    say(f"\nnames of several classes: {len(twice)}: {', '.join(twice)}")
    say(f"private members of {', '.join(PACKAGES)}: {len(private)}: {', '.join(private)}")


def main() -> None:
    """Count in this checkout, or in another revision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at", metavar="REVISION", help="count in a revision of git instead")
    given = parser.parse_args()
    if given.at is None:
        tell(ROOT)
    else:
        with check_out(given.at) as root:
            tell(root)


if __name__ == "__main__":
    main()

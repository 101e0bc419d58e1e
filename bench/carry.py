"""Brings packages along to a machine with a GPU that has PyTorch, NumPy and no network.

`python -m bench.carry pack` downloads what is missing there into `.bench/carried`: the wheels of
pydantic and PyYAML, for `make gpu`. With `--service` it also packs all that a service needs,
without what a sweep never uses, as one archive, for `make gpu-service`.

`python -m bench.carry run MODULE ...` unpacks that beside this folder's temporary files and runs a
module with it. What `PYTHONPATH` names already stays on it. It needs the standard library alone.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".bench" / "carried"
ARCHIVE = "site.tar.xz"

WHEELS = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "pyyaml")
THERE = ("torch", "numpy", "triton", "sympy", "mpmath", "networkx", "setuptools")
"""Packages that come with PyTorch, which the machine has."""
OF_CUDA = ("nvidia-", "cuda-")

UNUSED = (
    *(f"ray/{part}/*" for part in ("jars", "rllib", "cpp", "llm", "serve", "workflow")),
    "ray/dashboard/client/*",
    "plotly/package_data/templates/*",
    "plotly/labextension/*",
    "mlflow/server/js/*",
    "share/*",
    "*/tests/*",
    "*.pyc",
)
NEEDED = ("mlflow/server/js/build/index.html",)
"""Without it, MLflow does not start."""


def is_used(path: str) -> bool:
    """Tell whether a file of an installed package is packed, by its path with slashes.

    >>> [is_used(p) for p in ("ray/jars/a.jar", "ray/tune/tune.py", NEEDED[0])]
    [False, True, True]
    """
    return path in NEEDED or not any(fnmatch(path, each) for each in UNUSED)


def is_carried(requirement: str) -> bool:
    """Tell whether a line of requirements names a package that the machine lacks.

    >>> [is_carried(line) for line in ("torch==2.13.0", "nvidia-cublas==13.1", "ray==2.60")]
    [False, False, True]
    """
    name = requirement.partition("==")[0].partition("[")[0].strip().lower().replace("_", "-")
    return bool(name) and name not in THERE and not name.startswith(OF_CUDA)


def read_pins(names: Iterable[str]) -> list[str]:
    """Return the requirements of some packages as `constraints.txt` pins them."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = {
        line.partition("==")[0].replace("_", "-").lower(): line.partition(";")[0].strip()
        for line in lines
    }
    return [pins[name] for name in names]


def pack_wheels(folder: Path, python: str) -> None:
    """Download pydantic's wheels for a version of Python on Linux."""
    platforms = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
    options = ["--no-deps", "--only-binary=:all:", "--python-version", python]
    options += ["--implementation", "cp", "--dest", str(folder), "--quiet"]
    for platform in platforms:
        options += ["--platform", platform]
    command = [sys.executable, "-m", "pip", "download", *options, *read_pins(WHEELS)]
    subprocess.run(command, check=True)


def install_service(folder: Path, python: str) -> None:
    """Install all that a service needs and PyTorch does not bring, for Python on Linux."""
    uv, target = [sys.executable, "-m", "uv", "pip"], ["--python-version", python]
    target += ["--python-platform", "x86_64-manylinux_2_28"]
    with tempfile.TemporaryDirectory() as scratch:
        listed = Path(scratch) / "requirements.txt"
        sources = [str(ROOT / "pyproject.toml"), "--constraints", str(ROOT / "constraints.txt")]
        options = ["--no-annotate", "--no-header", "--quiet", "--output-file", str(listed)]
        subprocess.run([*uv, "compile", *sources, *target, *options], check=True)
        lines = [line for line in listed.read_text().splitlines() if is_carried(line)]
        listed.write_text("\n".join(lines))
        options = ["--no-deps", "--only-binary", ":all:", "--target", str(folder), "--quiet"]
        command = [*uv, "install", *target, *options, "--requirement", str(listed)]
        subprocess.run(command, check=True)


def pack(source: Path, archive: Path) -> int:
    """Pack what is used of a folder of installed packages; return the archive's bytes."""
    files = sorted(path for path in source.rglob("*") if path.is_file())
    with tarfile.open(archive, "w:xz") as made:
        for path in files:
            name = path.relative_to(source).as_posix()
            if is_used(name):
                made.add(path, name, recursive=False)
    return archive.stat().st_size


def unpack(folder: Path) -> Path:
    """Return a folder of packages with what was packed into `folder`; it is made once."""
    files = sorted([*folder.glob("*.whl"), *folder.glob(ARCHIVE)])
    names = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    key = hashlib.sha256("\n".join([str(folder), *names]).encode()).hexdigest()[:16]
    site = Path(tempfile.gettempdir()) / f"eigensweep-carried-{os.getuid()}-{key}"
    if site.exists():
        return site
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
        made = Path(scratch) / "site"
        made.mkdir()
        for path in files:
            if path.name == ARCHIVE:
                with tarfile.open(path) as archive:
                    archive.extractall(made, filter="data")
            else:
                with zipfile.ZipFile(path) as wheel:
                    wheel.extractall(made)
        made.rename(site)
    return site


def make_environment(folder: Path) -> dict[str, str]:
    """Return the environment with this checkout and what was packed behind what is named already.

    Its processes, too, import from there: Ray's among them.
    """
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    carried = [str(unpack(folder))] if folder.exists() else []
    places = dict.fromkeys([str(ROOT), *filter(None, named), *carried])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


def main(given: Sequence[str] | None = None) -> int:
    """Pack, or run a module with what was packed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: %(default)s")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="download what the machine lacks")
    packing.add_argument("--python", default="3.12", help="its version; default: %(default)s")
    packing.add_argument("--service", action="store_true", help="and all that a service needs")
    running = commands.add_parser("run", help="run a module with it")
    running.add_argument("module")
    running.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args(given)
    if arguments.command == "run":
        command = [sys.executable, "-m", arguments.module, *arguments.arguments]
        return subprocess.run(
            command, cwd=ROOT, env=make_environment(arguments.folder), check=False
        ).returncode
    arguments.folder.mkdir(parents=True, exist_ok=True)
    pack_wheels(arguments.folder, arguments.python)
    if arguments.service:
        with tempfile.TemporaryDirectory() as scratch:
            install_service(Path(scratch), arguments.python)
            size = pack(Path(scratch), arguments.folder / ARCHIVE)
        sys.stdout.write(f"{arguments.folder / ARCHIVE}: {size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

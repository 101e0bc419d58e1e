"""Brings packages along to a machine with a GPU that has PyTorch, NumPy and no network.

`python -m bench.carry pack` downloads what is missing there into `.bench/carried`: the wheels of
pydantic and PyYAML, for `make gpu`. With `--service` it also packs all that a service needs, for
`make gpu-service`: without what a sweep never uses and without symbols for debuggers, as small as
xz can make it, which takes minutes. It lies there in parts, which may be taken along one by one.

`python -m bench.carry run MODULE ...` unpacks that beside this folder's temporary files and runs a
module with it. What `PYTHONPATH` names already stays on it. It needs the standard library alone.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".bench" / "carried"
PARTS = "site.tar.xz.*"

WHEELS = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "pyyaml")
THERE = ("torch", "numpy", "triton", "sympy", "mpmath", "networkx", "setuptools")
"""Packages that come with PyTorch, which the machine has."""
OF_CUDA = ("nvidia-", "cuda-")

MISSED = (
    *("scipy", "scikit-learn", "skops", "joblib", "threadpoolctl", "fonttools", "narwhals"),
    *("psycopg", "psycopg-binary", "graphene", "graphql-core", "graphql-relay", "huey"),
    *("docker", "gitpython", "gitdb", "smmap", "gunicorn"),
    *("pyasn1", "pyasn1-modules", "google-auth"),
    *("matplotlib", "pillow", "contourpy", "kiwisolver", "cycler", "pyparsing"),
)
"""Packages that a sweep drawn at random does without. There are no plots there."""

UNUSED = (
    *(f"ray/{part}/*" for part in ("jars", "rllib", "cpp", "llm", "serve", "workflow")),
    "ray/dashboard/client/*",
    *(f"pyarrow/{part}" for part in ("*_flight.*", "libarrow_python*.so", "*.so.*.*.*")),
    *(f"pyarrow/_{part}*" for part in ("s3fs", "gcsfs", "azurefs", "hdfs", "orc", "substrait")),
    "pygments/lexers/[a-z]*",
    "databricks/sdk/*",  # MLflow looks for the package around it
    "mlflow/server/js/*",
    "share/*",
    "bin/*",
    "*/tests/*",
    "*/include/*",
    *(f"*.{kind}" for kind in ("pyc", "pyi", "c", "h", "hpp", "pxd", "pyx", "a", "map")),
    "*.dist-info/RECORD",
)
NEEDED = ("mlflow/server/js/build/index.html",)
"""Without it, MLflow does not start."""

LARGEST = 48_000_000
"""Bytes of a part: with the checkout and the wheels it fits into 64 MiB."""

FILTERS: Final = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 9, "dict_size": 1 << 28},
)
"""Of xz: addresses in machine code made absolute, and a window that holds most of the archive."""


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
    return bool(name) and name not in (*THERE, *WHEELS, *MISSED) and not name.startswith(OF_CUDA)


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
        subprocess.run(
            [*uv, "compile", *sources, "--extra", "service", *target, *options], check=True
        )
        lines = [line for line in listed.read_text().splitlines() if is_carried(line)]
        listed.write_text("\n".join(lines))
        options = ["--no-deps", "--only-binary", ":all:", "--target", str(folder), "--quiet"]
        options += ["--link-mode", "copy"]  # they are changed
        command = [*uv, "install", *target, *options, "--requirement", str(listed)]
        subprocess.run(command, check=True)


def strip(folder: Path) -> None:
    """Take the symbols for debuggers out of programs and libraries, if `strip` is installed."""
    program = shutil.which("strip")
    if program is None:
        sys.stderr.write("the archive will be larger: there is no `strip` (of binutils)\n")
        return
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and is_machine_code(path):
            # What strip refuses stays as it is.
            subprocess.run([program, "--strip-unneeded", str(path)], check=False)


def is_machine_code(path: Path) -> bool:
    """Tell whether a file is a program or a library of Linux."""
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def pack(source: Path, folder: Path, largest: int = LARGEST) -> list[Path]:
    """Pack what is used of a folder of installed packages; return the archive's parts."""
    files = (path for path in source.rglob("*") if path.is_file())
    names = {path.relative_to(source).as_posix(): path for path in files}

    def find_place(name: str) -> tuple[bool, str, str]:
        """Return where a file comes: what is alike lies together, which makes it smaller."""
        is_code = is_machine_code(names[name])
        return not is_code, "" if is_code else Path(name).suffix, name

    used = sorted(filter(is_used, names), key=find_place)
    with tempfile.TemporaryFile() as whole:
        with (
            lzma.open(whole, "wb", filters=FILTERS) as packed,
            tarfile.open(fileobj=packed, mode="w") as made,
        ):
            for name in used:
                made.add(names[name], name, recursive=False)
        count = -(-whole.tell() // largest)
        whole.seek(0)
        parts = [folder / PARTS.replace("*", f"{i}of{count}") for i in range(1, count + 1)]
        for part in parts:
            part.write_bytes(whole.read(largest))
    return parts


def find_parts(folder: Path) -> list[Path]:
    """Return the archive's parts in order; none if one is missing, which is said."""
    parts = sorted(folder.glob(PARTS), key=lambda path: int(path.suffix[1:].partition("of")[0]))
    count = int(parts[0].suffix.partition("of")[2]) if parts else 0
    if len(parts) == count:
        return parts
    here = ", ".join(path.name for path in parts)
    sys.stderr.write(f"a service needs all {count} parts of the archive; here are {here}\n")
    return []


def unpack(folder: Path) -> Path:
    """Return a folder of packages with what was packed into `folder`; it is made once."""
    wheels, parts = sorted(folder.glob("*.whl")), find_parts(folder)
    names = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in (*wheels, *parts)]
    key = hashlib.sha256("\n".join([str(folder), *names]).encode()).hexdigest()[:16]
    site = Path(tempfile.gettempdir()) / f"eigensweep-carried-{os.getuid()}-{key}"
    if site.exists():
        return site
    with tempfile.TemporaryDirectory(dir=site.parent) as scratch:
        made = Path(scratch) / "site"
        made.mkdir()
        for path in wheels:
            with zipfile.ZipFile(path) as wheel:
                wheel.extractall(made)
        if parts:
            with tempfile.TemporaryFile(dir=scratch) as whole:
                for part in parts:
                    whole.write(part.read_bytes())
                whole.seek(0)
                with tarfile.open(fileobj=whole) as archive:
                    archive.extractall(made, filter="data")
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
        if not any(arguments.folder.glob("*.*")):
            sys.stderr.write(f"nothing was brought along: {arguments.folder} is empty\n")
        command = [sys.executable, "-m", arguments.module, *arguments.arguments]
        return subprocess.run(
            command, cwd=ROOT, env=make_environment(arguments.folder), check=False
        ).returncode
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for old in (*arguments.folder.glob("*.whl"), *arguments.folder.glob(PARTS)):
        old.unlink()
    pack_wheels(arguments.folder, arguments.python)
    if arguments.service:
        with tempfile.TemporaryDirectory() as scratch:
            install_service(Path(scratch), arguments.python)
            strip(Path(scratch))
            for part in pack(Path(scratch), arguments.folder):
                sys.stdout.write(f"{part}: {part.stat().st_size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a person gets who installs a wheel."""

from __future__ import annotations

import ast
import configparser
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "tasks", "search_spaces", "workers", "service")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of what a wheel is made from."""
    copy = tmp_path_factory.mktemp("source")
    for package in ("eigensweep", *PACKAGES):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, copy / package, ignore=ignored, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(source: Path) -> Iterator[zipfile.ZipFile]:
    """Build a wheel, without network."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = (source / "out").glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def test_a_wheel_holds_every_file_of_every_package(source: Path, wheel: zipfile.ZipFile) -> None:
    expected = {
        f"eigensweep/{path.relative_to(source).as_posix()}"
        for package in PACKAGES
        for path in (source / package).rglob("*")
        if path.is_file()
    }

    assert expected - set(wheel.namelist()) == set()
    kinds = {Path(name).suffix for name in expected}
    assert {".py", ".yaml", ".mako"} <= kinds, "presets and templates are part of it"
    assert any("migrations/versions/" in name for name in expected)


def test_a_wheel_brings_the_command_line_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry_points).decode())

    assert scripts["console_scripts"]["eigensweep"] == "eigensweep.service.command.cli:main"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


def named(distribution: str) -> str:
    """Return a distribution's name in the one form that all its spellings have."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_everything_that_is_imported_is_declared(source: Path) -> None:
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    declared = {named(re.split(r"[\[><=]", each)[0]) for each in project["dependencies"]}
    declared |= {"pydantic-core", "starlette"}  # parts of pydantic and FastAPI
    modules = set()
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module.partition(".")[0])
    foreign = modules - set(sys.stdlib_module_names) - {"eigensweep"}

    found = packages_distributions()
    assert {m for m in foreign if not {named(d) for d in found[m]} & declared} == set()


def test_models_and_tasks_need_torch_numpy_and_pydantic_only():
    program = """
import sys
from importlib.abc import MetaPathFinder
from importlib.metadata import packages_distributions

ours = {"eigensweep"}
allowed = {"torch", "numpy", "pydantic", "pydantic-core", "typing-extensions", "annotated-types"}
allowed |= {"typing-inspection", "sympy", "mpmath", "networkx", "filelock", "fsspec", "jinja2"}
allowed |= {"markupsafe", "setuptools"}
owners = packages_distributions()

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        of = {o.lower().replace("_", "-") for o in owners.get(name.partition(".")[0], [])}
        if of and not of & allowed and name.partition(".")[0] not in ours:
            raise ModuleNotFoundError(f"{name} is not there", name=name)

sys.meta_path.insert(0, Absent())
import eigensweep.models, eigensweep.models.analysis, eigensweep.models.stack, eigensweep.tasks
print(len(eigensweep.models.MODELS), len(eigensweep.tasks.TASKS))
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert min(int(count) for count in done.stdout.split()) > 0

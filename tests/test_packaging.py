"""What a person gets who installs a wheel."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "tasks", "search_spaces", "workers", "service")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """Build a wheel from a copy of the tree, without network."""
    source = tmp_path_factory.mktemp("source")
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, source / package, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "out", "."]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (file,) = (source / "out").glob("*.whl")
    with zipfile.ZipFile(file) as opened:
        yield opened


def test_a_wheel_holds_every_file_of_every_package(wheel: zipfile.ZipFile) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert expected - set(wheel.namelist()) == set()
    kinds = {Path(name).suffix for name in expected}
    assert {".py", ".yaml", ".mako"} <= kinds, "presets and templates are part of it"
    assert any("migrations/versions/" in name for name in expected)


def test_a_wheel_brings_the_command_line_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = (n for n in wheel.namelist() if n.endswith("entry_points.txt"))
    scripts = configparser.ConfigParser()
    scripts.read_string(wheel.read(entry_points).decode())

    assert scripts["console_scripts"]["eigensweep"] == "service.cli:main"
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())

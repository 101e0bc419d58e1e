"""What is brought along to a machine with a GPU and no network."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from bench import carry

ROOT = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages, some of it of no use to a sweep."""
    site = tmp_path / "site"
    for path in (
        *("ray/tune/tune.py", "ray/jars/a.jar", "ray/rllib/b.py", "plotly/labextension/c.js"),
        *("mlflow/server/js/build/index.html", "mlflow/server/js/build/d.js", "pandas/tests/e.py"),
    ):
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(f"VALUE = {path!r}\n")
    return site


@pytest.fixture
def carried(tmp_path, site, monkeypatch):
    """What is carried: an archive of that, and a wheel."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / "carried"
    folder.mkdir()
    carry.pack(site, folder / carry.ARCHIVE)
    with zipfile.ZipFile(folder / "pydantic-2.whl", "w") as wheel:
        wheel.writestr("brought_along.py", "print('found')\n")
    return folder


def test_an_archive_has_what_a_sweep_uses(carried):
    unpacked = carry.unpack(carried)

    files = {p.relative_to(unpacked).as_posix() for p in unpacked.rglob("*") if p.is_file()}
    used = {"ray/tune/tune.py", "mlflow/server/js/build/index.html", "brought_along.py"}
    assert files == used
    assert carry.unpack(carried) == unpacked, "it is unpacked once"


def test_what_comes_with_pytorch_is_not_carried():
    lines = [
        "torch==2.13.0",
        "nvidia-nccl-cu13==2",
        "cuda-toolkit==13",
        "triton==3",
        "ray[tune]==2",
    ]
    assert [line for line in lines if carry.is_carried(line)] == ["ray[tune]==2"]


def test_pins_are_those_of_the_constraints():
    assert all("==" in pin for pin in carry.read_pins(carry.WHEELS))


def test_a_module_runs_with_it_and_with_what_was_on_the_path(carried, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/already/there")
    environment = carry.make_environment(carried)
    places = environment["PYTHONPATH"].split(os.pathsep)
    assert places == [str(ROOT), "/already/there", str(carry.unpack(carried))]
    command = [sys.executable, "-m", "bench.carry", "--folder", str(carried)]
    run = subprocess.run(
        [*command, "run", "brought_along"],
        cwd=ROOT,
        env={**environment, "TMPDIR": tempfile.gettempdir()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "found\n"), run.stderr


def test_nothing_is_needed_where_nothing_is_carried(tmp_path):
    places = carry.make_environment(tmp_path / "none")["PYTHONPATH"].split(os.pathsep)
    assert places[0] == str(ROOT)

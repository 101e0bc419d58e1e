"""What is brought along to a machine with a GPU and no network."""

from __future__ import annotations

import json
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from helpers.needed_packages import close
from test_images import SERVICE, WORKER

from bench import carry

ROOT = Path(__file__).parents[2]
QUICK = ({"id": lzma.FILTER_LZMA2, "preset": 1},)


def top_level(names: Iterable[str]) -> set[Path]:
    """Return the files and folders of packages, as they lie beside each other here."""
    found = set()
    for name in names:
        package = distribution(name)
        for file in package.files or []:
            if not str(file).startswith(("..", "__pycache__")):
                found.add(Path(str(package.locate_file(file.parts[0]))))
    return found


@pytest.fixture
def site(tmp_path):
    """A folder of installed packages, some of it of no use to a sweep."""
    site = tmp_path / "site"
    for path in (
        *("ray/tune/tune.py", "ray/jars/a.jar", "ray/rllib/b.py", "ray/cpp/c.js"),
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
    monkeypatch.setattr(carry, "FILTERS", QUICK)
    carry.pack(site, folder, largest=200)
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


def test_without_a_gpu_a_sweep_says_so_at_once(monkeypatch, capsys):
    gpu_service = pytest.importorskip("bench.gpu_service")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(gpu_service.RayCluster, "start", lambda **more: pytest.fail("it began"))

    assert gpu_service.main([]) == 2
    assert "PyTorch finds no CUDA device" in capsys.readouterr().out


def test_who_brought_nothing_along_is_told(tmp_path, capfd):
    status = carry.main(["--folder", str(tmp_path / "none"), "run", "bench.nothing"])

    assert status != 0
    assert "nothing was brought along" in capfd.readouterr().err


def test_an_archive_that_lacks_a_part_gives_way_to_the_wheels(carried, capsys):
    parts = sorted(carried.glob(carry.PARTS))
    assert len(parts) > 1
    parts[1].unlink()

    unpacked = carry.unpack(carried)

    assert [path.name for path in unpacked.iterdir()] == ["brought_along.py"]
    assert (
        f"all {len(parts)} parts of the archive; here are {parts[0].name}"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1800)
def test_a_sweep_runs_from_the_archive_beside_pytorch_alone(tmp_path, monkeypatch):
    """As on a machine with a GPU, but for the GPU, and the versions of Python and PyTorch."""
    installed = close(WORKER + SERVICE)
    carried = {name for name in installed if carry.is_carried(name)}
    site, bare, folder = (tmp_path / name for name in ("site", "bare", "carried"))
    site.mkdir()
    for path in top_level(carried):
        if path.is_dir():
            shutil.copytree(path, site / path.name, dirs_exist_ok=True)
        else:
            shutil.copy(path, site)
    folder.mkdir()
    carry.strip(site)
    monkeypatch.setattr(carry, "FILTERS", QUICK)
    carry.pack(site, folder)
    shutil.rmtree(site)
    bare.mkdir()
    for path in top_level(close(["torch", "numpy", *carry.WHEELS]) - carried):
        (bare / path.name).symlink_to(path)
    venv.create(tmp_path / "python")

    python, numbers = tmp_path / "python/bin/python", tmp_path / "numbers.json"
    command = [str(python), "-m", "bench.carry", "--folder", str(folder), "run"]
    options = ["--quick", "--device", "cpu", "--lanes", "8", "--minutes", "20"]
    subprocess.run(
        [*command, "bench.gpu_service", *options, "--json", str(numbers)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(bare), "TMPDIR": str(tmp_path)},
        check=True,
    )

    assert json.loads(numbers.read_text())["state"] == "completed"

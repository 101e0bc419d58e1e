"""The Dockerfile's two images: what is installed into each, and that a worker needs no more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from helpers.needed_packages import HIDE, find_absent

ROOT = Path(__file__).parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
BASE = PROJECT["dependencies"]
WORKER = BASE + EXTRAS["worker"]
SERVICE = [each for each in EXTRAS["service"] if each != "eigensweep[worker]"] + EXTRAS["postgres"]
STORES = EXTRAS["s3"] + EXTRAS["gcs"]
ABSENT = {"fastapi", "starlette", "uvicorn", "sqlalchemy", "alembic", "mlflow", "optuna", "psycopg"}


RUN_AS_A_WORKER = """
import eigensweep.workers.cluster.node_health
import eigensweep.workers.driver.nodes.lanes  # `lanes: auto` measures on a worker
import eigensweep.workers.processes.engine_actor
import eigensweep.workers.processes.trial_process
from eigensweep.common import logs
logs.set_up("json")
from eigensweep import train
from eigensweep.models import MODELS
from eigensweep.tasks import TASKS
result = train({
    "task": {"name": "copying", "delay": 3, "valid_size": 20, "test_size": 20},
    "model": {"name": "scornn", "hidden_size": 4, "negative_ones": 2},
    "training": {"steps": 2, "evaluate_every": 1},
    "replicates": 3,
})
print(len(MODELS) > 10, len(TASKS) > 5, result.summary.interval["value"] is not None)
"""


def test_a_trial_trains_with_a_workers_packages_alone() -> None:
    absent = find_absent(WORKER)
    assert absent >= ABSENT, "the worker's packages bring what belongs to the service"

    program = HIDE.format(absent=absent) + RUN_AS_A_WORKER
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_service_has_all_that_a_worker_has() -> None:
    assert "eigensweep[worker]" in EXTRAS["service"]


def steps_of(target: str) -> list[str]:
    """Return the shell commands that make an image, its base's first."""
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {stage.splitlines()[0].split(" AS ")[1]: stage for stage in stages}
    base = by_name[target].split(" AS ")[0]
    before = steps_of(base) if base in by_name else []
    runs = re.findall(r"^RUN ((?:.*\\\n)*.*)$", by_name[target], flags=re.MULTILINE)
    return before + [run.replace("\\\n", " ") for run in runs]


@pytest.mark.parametrize(
    ("target", "cuda", "lists", "index"),
    [
        ("worker", "", [WORKER + STORES], "https://torch.test/whl/cpu"),
        ("worker", "cu130", [WORKER + STORES + EXTRAS["gpu"]], "https://torch.test/whl/cu130"),
        ("service", "", [WORKER + STORES, SERVICE], "https://torch.test/whl/cpu"),
    ],
)
def test_an_image_gets_its_packages(
    target: str, cuda: str, lists: list[list[str]], index: str, tmp_path: Path
) -> None:
    """The Dockerfile's steps run here; a program in the place of `pip` writes its words down."""
    (tmp_path / "bin").mkdir()
    pip = tmp_path / "bin" / "pip"
    pip.write_text('#!/bin/sh\necho "$@" >> pip.log\n')
    pip.chmod(0o755)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "CUDA": cuda,
        "TORCH_INDEX": "https://torch.test/whl",
    }

    for step in steps_of(target):
        if step.startswith(("python", "pip")):
            subprocess.run(step, shell=True, cwd=tmp_path, env=environment, check=True)

    *installed, last = (tmp_path / "pip.log").read_text().splitlines()
    files = [re.search(r"-r (\S+)", words)[1] for words in installed]
    assert [(tmp_path / file).read_text().split("\n")[:-1] for file in files] == lists
    assert all(f"--extra-index-url {index} -c constraints.txt" in words for words in installed)
    assert last == "install --no-cache-dir --no-deps -c constraints.txt ."


def test_compose_builds_the_targets_of_the_dockerfile() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    content = yaml.safe_load(re.sub(r"\$\{[^}]*\}", "1", text))
    targets = {n: s["build"]["target"] for n, s in content["services"].items() if "build" in s}

    assert targets == {
        "mlflow": "service",
        "service": "service",
        "ray-head": "worker",
        "ray-worker": "worker",
        "ray-worker-gpu": "worker",
    }
    assert set(targets.values()) <= set(re.findall(r" AS (\w+)", DOCKERFILE))
    images = {s["image"] for n, s in content["services"].items() if targets.get(n) == "worker"}
    assert images == {"eigensweep-worker"}

"""A development cluster: an experiment on three nodes of this machine, and a clean end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from development_cluster import find_programs
from helpers.waiting import PATIENCE, wait_until

from eigensweep.client import Client, Experiment
from eigensweep.common import guard

ROOT = Path(__file__).parents[2]
SPEC = {
    "name": "spread",
    "task": {"name": "copying", "delay": 4, "symbols": 2, "valid_size": 8, "test_size": 8},
    "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.2},
    "training": {"steps": 40, "evaluate_every": 10},
    "search": {"space": {"optimizer.lr": [0.1, 0.2, 0.3]}},
}


@pytest.mark.slow
def test_three_nodes_train_and_nothing_is_left_behind() -> None:
    kind = [] if find_programs() else ["--sqlite"]
    with tempfile.TemporaryDirectory(prefix="es-", dir="/tmp") as short:
        folder = Path(short) / "cluster"
        try:
            said = call(folder, "up", "--nodes", "3", "--cpus-per-node", "1", *kind)
            ready = re.findall(r"The cluster is ready after \d+ s: 3 nodes", said)
            (url,) = re.findall(r"export EIGENSWEEP_URL=(\S+)", said)
            assert ready
            assert call(folder, "status").count("running") == (7 if not kind else 6)
            with Client(url) as client:
                experiment = client.submit(SPEC)
                assert (
                    len(
                        wait_until(lambda: nodes_of(client, experiment), lambda: experiment.content)
                    )
                    == 3
                )
                experiment.wait(timeout=PATIENCE)
                assert experiment.state == "completed", experiment.content
                assert [trial["state"] for trial in experiment.listing()] == ["completed"] * 3
            secrets = {path.read_text() for path in (folder / "ray-token", folder / "mlflow/token")}
            arguments = [" ".join(process.cmdline()) for process in family(folder)]
            assert len(arguments) > 7
            assert [each for each in arguments if any(secret in each for secret in secrets)] == []
            assert any("mlflow" in each for each in arguments)
        finally:
            ended = call(folder, "down")
        assert "killing" not in ended
        assert family(folder) == []
        again = call(folder, "down", "--delete")
        assert "no cluster ran in" in again
        assert not folder.exists()


def call(folder: Path, *words: str) -> str:
    """Return what a command of the cluster prints."""
    command = [sys.executable, str(ROOT / "deploy/development_cluster.py"), *words]
    done = subprocess.run(
        [*command, "--folder", str(folder)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/plugins'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def family(folder: Path) -> list[psutil.Process]:
    """Return the living processes of a cluster and of its service."""
    places = tuple(f":{place}" for place in (folder, folder / "home"))
    return guard.find_marked(lambda mark: mark.endswith(places))


def nodes_of(client: Client, experiment: Experiment) -> set[str]:
    """Return the ports of the nodes whose processes train, once all three trials do."""
    found: set[str] = set()
    for trial in experiment.listing():
        path = f"/v1/experiments/{experiment.id}/trials/{trial['number']}"
        for attempt in client.get(path)["attempts"]:
            try:
                *_, raylet, _ = psutil.Process(attempt["pid"]).cmdline()  # of its fork server
                words = " ".join(psutil.Process(int(raylet)).cmdline())
            except (psutil.Error, ValueError):
                continue
            found |= set(re.findall(r"--node_manager_port=(\d+)", words))
    return found if len(found) == 3 else set()

"""deploy/slurm with real Ray, service and trials: two allocations, one after the other.

Each node is a network namespace, and `srun` and `scontrol` are programs of the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.networks import Network, make_network
from helpers.waiting import PATIENCE, wait_until

from eigensweep.client import Client, Experiment

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy" / "slurm" / "eigensweep.sbatch"
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do
  [[ "$1" != --nodelist=* ]] || node="${1#--nodelist=}"
  shift
done
exec ip netns exec "$(grep " $node$" "$SPACES" | cut -d' ' -f1)" "$@"
"""
SCONTROL = """#!/bin/bash
[ "$1" != show ] || { cut -d' ' -f2 "$SPACES"; exit; }
echo "scontrol $*"
"""
SPEC = {
    "name": "goes on",
    "task": {"name": "copying", "delay": 4, "symbols": 2, "valid_size": 8, "test_size": 8},
    "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.4},
    "training": {"steps": 160, "evaluate_every": 5},
    "search": {"space": {"optimizer.lr": [0.1, 0.2]}},
}


class Cluster:
    """Two nodes on which the script is started, as Slurm would."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        self.mark = uuid.uuid4().hex
        self.log = folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        spaces = [f"{network.space(node)} {at}\n" for node, at in network.addresses.items()]
        (folder / "spaces").write_text("".join(spaces))
        for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(self) -> subprocess.Popen[bytes]:
        """Start an allocation and wait until its service is ready."""
        before = len(self.said())
        here = {n: v for n, v in os.environ.items() if not n.startswith("EIGENSWEEP_")}
        given = {
            "PATH": f"{self.folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/plugins'}",
            "SPACES": str(self.folder / "spaces"),
            "EIGENSWEEP_TEST_MARK": self.mark,
            "EIGENSWEEP_HOME": str(self.folder / "home"),
            "EIGENSWEEP_HOST": "0.0.0.0",
            "EIGENSWEEP_CHECKPOINT_SECONDS": "1",
            "RAY_TMPDIR": str(self.folder / "ray"),
            "OMP_NUM_THREADS": "1",
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "two",
            "SLURM_CPUS_PER_TASK": "1",
        }
        with self.log.open("ab") as log:
            self.process = process = subprocess.Popen(
                self.network.inside("first", ["bash", str(SCRIPT)]),
                env=here | given,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

        def is_ready() -> bool:
            assert process.poll() is None, self.said()[-4000:]
            return "ready for experiments" in self.said()[before:]

        wait_until(is_ready, lambda: self.said()[-4000:])
        return process

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def client(self) -> Client:
        url = f"http://{self.network.addresses['first']}:8642"
        return Client(url, (self.folder / "home" / "token").read_text())

    def family(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                is_ours = process.environ().get("EIGENSWEEP_TEST_MARK") == self.mark
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def clear(self) -> None:
        for process in self.family():
            try:
                process.kill()
            except psutil.Error:
                continue
        if self.process is not None:
            self.process.wait()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with (
        make_network(["first", "second"]) as network,
        tempfile.TemporaryDirectory(prefix="es-", dir="/tmp", ignore_cleanup_errors=True) as name,
    ):
        made = Cluster(network, Path(name))
        try:
            yield made
        finally:
            made.clear()


def attempts_of(client: Client, experiment: Experiment) -> list[list[int]]:
    """Return the process of each attempt, trial by trial."""
    path = f"/v1/experiments/{experiment.id}/trials"
    numbers = [trial["number"] for trial in experiment.listing()]
    trials = [client.get(f"{path}/{number}") for number in numbers]
    return [[a["pid"] for a in trial["attempts"] if a["pid"]] for trial in trials]


def steps_of(experiment: Experiment) -> list[int]:
    return [trial["step"] or 0 for trial in experiment.listing()]


def networks_of(pids: list[int]) -> set[str]:
    """Return the networks that living processes see."""
    return {os.readlink(f"/proc/{pid}/ns/net") for pid in pids if psutil.pid_exists(pid)}


def test_an_experiment_goes_on_in_the_next_allocation(cluster: Cluster) -> None:
    first = cluster.start()
    with cluster.client() as client:
        experiment = client.submit(SPEC)

        def trains() -> bool:
            return len(steps := steps_of(experiment)) == 2 and min(steps) >= 10

        wait_until(trains, lambda: (experiment.content, cluster.said()[-4000:]), 0.3)
        pids = [pids[-1] for pids in attempts_of(client, experiment)]
        assert len(networks_of(pids)) == 2, "each node trains one of the trials"

    first.send_signal(signal.SIGUSR1)

    assert first.wait(PATIENCE) == 0, cluster.said()[-4000:]
    assert "scontrol requeue 7" in cluster.said()
    wait_until(lambda: not cluster.family(), cluster.family)

    second = cluster.start()
    with cluster.client() as client:
        experiment = client.experiment(experiment.id)
        experiment.wait(timeout=PATIENCE)
        assert experiment.state == "completed", cluster.said()[-4000:]
        assert [len(pids) for pids in attempts_of(client, experiment)] == [2, 2], (
            "each was trained by a process of each allocation"
        )
    second.terminate()
    assert second.wait(PATIENCE) == 143
    wait_until(lambda: not cluster.family(), cluster.family)

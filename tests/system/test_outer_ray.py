"""A service on a Ray of somebody else, which goes away and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from grids import Grid
from test_drivers import SIDE_BY_SIDE, find_drivers, find_steps, post, wait_for_more
from waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

SPEC: dict[str, Any] = {
    "task": {"name": "copying", "delay": 4, "symbols": 2, "valid_size": 8, "test_size": 8},
    "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.05},
    "training": {"steps": 400, "evaluate_every": 100},
}


class OuterRay:
    """Ray's head, as an administrator starts it on this machine."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port, self.log = port, folder / "ray.log"
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"]
        command += [f"--port={self.port}", "--num-cpus=2", "--include-dashboard=false"]
        self.command = [*command, f"--temp-dir={folder / 'ray'}"]
        self.env = os.environ | {
            "RAY_AUTH_MODE": "disabled",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/plugins'}",
            "OMP_NUM_THREADS": "1",
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, env=self.env, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._listens, self.log.read_text)

    def kill(self) -> None:
        """End the head and all its processes at once."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def list_drivers(self) -> list[int]:
        """Return the numbers of the processes of drivers that work on this Ray."""
        found = []
        for each in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_mine = each.environ().get("EIGENSWEEP_RAY_ADDRESS") == self.address
                if is_mine and "eigensweep::Driver" in " ".join(each.cmdline()):
                    found.append(each.pid)
        return found

    def _listens(self) -> bool:
        with socket.socket() as knock:
            return knock.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def outer(free_port: Any) -> Iterator[OuterRay]:
    with tempfile.TemporaryDirectory(prefix="es-", ignore_cleanup_errors=True) as folder:
        made = OuterRay(Path(folder), free_port())
        made.start()
        yield made
        made.kill()


def launcher(service: Any) -> dict[str, Any]:
    try:
        return service.get("/readyz")["checks"]["launcher"]
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)["checks"]["launcher"]


def test_it_answers_without_ray_and_goes_on_when_it_is_back(outer, service):
    service.env |= {"EIGENSWEEP_RAY_ADDRESS": outer.address, "RAY_AUTH_MODE": "disabled"}
    service.start()
    id = service.post(SPEC)["id"]
    service.wait_for(id, lambda found: found["progress"]["running"] == 1)
    outer.kill()
    wait_until(lambda: not launcher(service)["ready"], service.log.read_text)
    assert service.get("/healthz") == {"status": "alive"}
    assert service.experiment(id)["state"] == "running"
    outer.start()
    wait_until(lambda: launcher(service)["ready"], service.log.read_text)
    assert service.wait(id)["state"] == "completed"
    (trial,) = service.trials(id)
    assert (trial["step"], trial["attempt"]) == (400, 2)


@pytest.mark.timeout(900)
def test_the_next_service_finds_drivers_that_outlived_one(outer, service):
    grid = Grid(trials=2, steps=300)
    service.env |= {"EIGENSWEEP_RAY_ADDRESS": outer.address, "RAY_AUTH_MODE": "disabled"}
    service.env |= SIDE_BY_SIDE
    service.start()
    ids = [post(service, number, grid) for number in range(2)]
    wait_until(lambda: min(find_steps(service, ids)) > 0, service.log.read_text)
    drivers = find_drivers(service)
    assert {*outer.list_drivers()} == {*drivers.values()}
    assert len({*drivers.values()}) == 2

    service.kill()
    wait_until(lambda: not service.find_part("zygote"), service.log.read_text)
    service.start()
    wait_for_more(service, ids)
    assert find_drivers(service) == drivers
    for id in ids:
        grid.check_results(service, id)
        assert [len(trial["attempts"]) for trial in service.trials(id)] == [1, 1]
    wait_until(lambda: outer.list_drivers() == [], outer.list_drivers)
    last = post(service, 2, grid)
    wait_until(lambda: find_steps(service, [last]) > [0], service.log.read_text)
    service.stop()
    assert outer.list_drivers() != [], "it outlives the service"
    assert service.find_part("zygote") == []

"""How the service lives with a Ray that goes away and comes back, which a small program plays."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import ray
from waiting import wait_until

from eigensweep.protocol.messages import DriverOptions
from eigensweep.service.queue import cluster_process
from eigensweep.service.queue.cluster_process import ClusterProcess, LauncherAwayError
from eigensweep.service.settings import StartError
from eigensweep.workers.cluster import ray_cluster, served
from eigensweep.workers.cluster.drivers import DriverProcess
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.deaths import Death
from eigensweep.workers.driver.process.driver_order import DriverOrder, Request

OPTIONS = DriverOptions(storage="/s")
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture
def away(tmp_path: Path) -> Path:
    """The file whose presence says that Ray is away."""
    return tmp_path / "away"


class PlayedDrivers:
    """Forks nothing: each driver is as a test says."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.launched: list[DriverProcess] = []
        self.told: list[tuple[DriverOrder, str]] = []
        """The order of each driver, and where its log is."""
        self.environment: dict[str, str] = {}
        """That of the zygote."""

    def start(self, environment: dict[str, str]) -> None:
        """Start no zygote."""
        self.environment = environment

    def watch(self) -> None:
        """Look at no zygote."""

    def stop(self, *, kill: bool = False) -> None:
        """Stop no zygote."""

    def launch(self, order: DriverOrder, log: str, was_well: Any) -> DriverProcess:
        driver = DriverProcess(order.experiment, Request(0, b"", log), was_well)
        self.launched.append(driver)
        self.told.append((order, log))
        return driver

    def find(self, experiment: str) -> DriverProcess | None:
        living = (d for d in self.launched if d.state() == "running")
        return next((d for d in living if d.experiment == experiment), None)


@pytest.fixture
def cluster(away: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterProcess]:
    made = make(away, monkeypatch)
    yield made
    made.stop()


def make(away: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> ClusterProcess:
    monkeypatch.setattr(cluster_process, "PROGRAM", "played_ray")
    monkeypatch.setenv("PYTHONPATH", str(HELPERS))
    drivers: Any = PlayedDrivers()
    return ClusterProcess({"away": str(away), **settings}, mark=uuid4().hex, drivers=drivers)


def die(cluster: ClusterProcess, death: Death) -> None:
    """Let the last driver end at this moment."""
    played: Any = cluster.drivers
    played.launched[-1].finish("died", death)


def lose_ray(cluster: ClusterProcess, away: Path) -> None:
    away.touch()
    wait_until(lambda: "control process does not answer" in (cluster.problem or ""))


def join_again(cluster: ClusterProcess, away: Path) -> None:
    away.unlink()

    def is_back() -> bool:
        cluster.watch()
        return cluster.problem is None

    wait_until(is_back, lambda: cluster.problem, pause=0.01)


FAILURE = Death("the driver's process ended with status 1")


def test_a_driver_is_told_where_ray_is_and_where_its_log_is(cluster, away):
    cluster.start()
    cluster.launch("e1", {}, None, OPTIONS)
    played: Any = cluster.drivers
    ((order, log),) = played.told
    assert order == DriverOrder("e1", {}, None, OPTIONS, "10.0.0.7:6379")
    assert log == str(away.with_name("logs") / "driver-e1.log")


def test_a_ray_that_goes_away_is_told_and_asked_nothing(cluster, away):
    cluster.start()
    driver = cluster.launch("e1", {}, None, OPTIONS)
    assert (cluster.problem, driver.state()) == (None, "running")
    lose_ray(cluster, away)
    die(cluster, FAILURE)
    assert driver.state() == "lost"
    for ask in (lambda: cluster.find("e1"), lambda: cluster.launch("e2", {}, None, OPTIONS)):
        with pytest.raises(LauncherAwayError):
            ask()


def test_a_ray_that_is_back_is_joined_and_its_drivers_found(cluster, away):
    cluster.start()
    driver = cluster.launch("e1", {}, None, OPTIONS)
    lose_ray(cluster, away)

    def tries_again() -> bool:
        cluster.watch()
        return "it is away" in (cluster.problem or "")

    wait_until(tries_again, lambda: cluster.problem, pause=0.01)
    join_again(cluster, away)
    assert cluster.starts == 2
    assert driver.state() == cluster.find("e1").state() == "running"
    die(cluster, FAILURE)
    assert (driver.state(), cluster.find("e1")) == ("lost", None)


def test_a_death_is_the_drivers_own_if_ray_stays_well(cluster, monkeypatch):
    monkeypatch.setattr(cluster_process, "SURE_SECONDS", 0.2)
    cluster.start()
    driver = cluster.launch("e1", {}, None, OPTIONS)
    die(cluster, FAILURE)
    assert driver.state() == "running"
    wait_until(lambda: driver.state() == "died")
    assert driver.death == FAILURE
    cluster.launch("e2", {}, None, OPTIONS)
    die(cluster, Death("no memory", "memory"))
    (_, other) = cluster.drivers.launched
    assert other.state() == "died"


def test_a_death_after_a_silence_of_ray_is_not_the_drivers_own(cluster, monkeypatch):
    cluster.start()
    driver = cluster.launch("e1", {}, None, OPTIONS)
    cluster._ill = time.monotonic()
    die(cluster, FAILURE)
    assert driver.state() == "lost"
    monkeypatch.setattr(cluster_process, "SURE_SECONDS", 0.0)
    later = cluster.launch("e2", {}, None, OPTIONS)
    die(cluster, FAILURE)
    wait_until(lambda: later.state() == "died")


def test_a_ray_that_is_silent_from_the_start_is_a_problem(cluster, monkeypatch):
    monkeypatch.setattr(cluster, "_look", None)
    cluster._take("ready", cluster._place)
    assert cluster.problem is None
    cluster._take("silent", "Ray's control process does not answer")
    assert cluster.problem is None
    cluster._heard -= cluster_process.SILENT_SECONDS
    assert cluster.problem.startswith("Ray's control process does not answer, for ")


def test_a_late_call_connects_to_no_other_ray(cluster):
    cluster.start()
    played: Any = cluster.drivers
    found = {**played.environment, "RAY_ADDRESS": "127.0.0.1:1"}  # where a call would connect
    late = [sys.executable, "-c", "import ray; ray.nodes()"]
    call = subprocess.run(late, env=found, capture_output=True, text=True, check=False)
    assert "Ray has not been" in call.stderr


def test_a_driver_of_an_earlier_service_ends_by_nobodys_fault(away, monkeypatch):
    cluster = make(away, monkeypatch, drivers=["e1"])
    cluster.start()
    driver = cluster.find("e1")
    assert (driver.state(), cluster.find("e2")) == ("running", None)
    cluster._take("seen", replace(cluster._look, drivers=frozenset()))
    assert (driver.state(), driver.death.cause) == ("ended", "unseen")
    cluster._take("seen", replace(cluster._look, drivers=frozenset(["e1"])))
    driver = cluster.find("e1")
    assert (driver.state(), cluster.find("e1")) == ("running", driver)
    cluster._take("ready", cluster._place)
    assert driver.state() == "lost"
    cluster.stop()


def test_while_no_driver_can_be_forked_that_is_the_problem(cluster):
    cluster.start()
    cluster.drivers.problem = "the process that drivers are forked from ends while it loads"
    assert cluster.problem == cluster.drivers.problem
    with pytest.raises(LauncherAwayError, match="ends while it loads"):
        cluster.launch("e1", {}, None, OPTIONS)


def test_a_service_does_not_start_with_a_ray_that_is_away(cluster, away):
    away.touch()
    with pytest.raises(StartError, match="it is away"):
        cluster.start()


def test_a_ray_that_is_slow_to_start_is_started_again(cluster, away, caplog):
    away.with_name("slow").write_text("2")
    cluster.start()
    assert (cluster.problem, cluster.starts) == (None, 1)
    words = "Ray did not start in 30 s: the machine may be busy; trying again"
    assert caplog.text.count(words) == 2


def test_while_ray_is_slow_to_start_the_rest_is_looked_after(cluster, away):
    away.with_name("slow").write_text("1000")

    def find_end() -> None:
        raise RuntimeError("the HTTP server ended by itself")

    with pytest.raises(RuntimeError, match="HTTP server"):
        cluster.start(find_end)


def test_a_process_that_hangs_at_its_end_holds_nothing_up(cluster, away):
    """It leaves a Ray that has not come up, and that can wait for ever."""
    away.with_name("hangs").touch()
    away.with_name("slow").write_text("1")
    cluster.start()
    assert (cluster.problem, cluster.starts) == (None, 1)
    away.with_name("slow").write_text("2")
    assert cluster._process is not None
    cluster._process.kill()
    wait_until(lambda: cluster.problem is not None)

    def is_back() -> bool:
        cluster.watch()
        return cluster.problem is None

    wait_until(is_back, lambda: cluster.problem, pause=0.01)
    assert cluster.starts == 2


def test_a_machine_that_is_busy_for_long_is_waited_for(cluster, away):
    away.with_name("slow").write_text("7")
    cluster.start()
    assert (cluster.problem, away.with_name("slow").read_text()) == (None, "0")


def test_what_ray_says_of_a_slow_start_is_told_from_a_failure(monkeypatch):
    errors = [
        Exception("The current node timed out during startup. This could happen because some of"),
        RuntimeError("Timed out waiting for file /home/ray/gcs_server_port_7b"),
        Exception("a bug"),
    ]

    def fail(**settings: Any) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(ray, "init", fail)
    for _ in range(2):
        with pytest.raises(ray_cluster.SlowStartError, match="the machine may be busy"):
            ray_cluster._init(address="local")
    with pytest.raises(Exception, match="a bug"):
        ray_cluster._init(address="local")


class TestALookAtRay:
    """What the process beside the service asks every second."""

    @pytest.fixture
    def node(self, tmp_path: Path) -> Iterator[Any]:
        """A Ray whose two control processes listen."""
        raylet = str(tmp_path / "raylet")
        with (
            socket.create_server(("127.0.0.1", 0)) as gcs,
            socket.socket(socket.AF_UNIX) as local,
        ):
            local.bind(raylet)
            local.listen()
            address = f"127.0.0.1:{gcs.getsockname()[1]}"
            cluster = RayCluster(None, {"gcs_address": address, "raylet_socket_name": raylet})
            yield SimpleNamespace(gcs=gcs, local=local, cluster=cluster)

    def test_each_of_its_control_processes_is_missed(self, node):
        explain = node.cluster.explain_loss
        assert explain() is None
        node.local.close()
        assert "Ray's process for this machine does not answer" in explain()
        node.gcs.close()
        assert "Ray's control process at 127.0.0.1" in explain()

    def test_one_that_stands_still_is_not_lost(self, node):
        """Its queue of knocks fills: a look every second, and nobody takes them."""
        knocks = [socket.socket(socket.AF_UNIX) for _ in range(500)]
        taken = []
        with suppress(BlockingIOError):
            for each in knocks:
                each.setblocking(False)
                each.connect(node.local.getsockname())
                taken.append(each)
        assert len(taken) < len(knocks), "its queue is full"
        assert node.cluster.explain_loss() is None
        for each in knocks:
            each.close()

    def test_it_is_lost_after_two_looks_in_vain_and_not_after_one(self, monkeypatch):
        looks, told = iter([None, "away", None, "away", "away"]), []
        cluster = SimpleNamespace(explain_loss=lambda: next(looks))
        monkeypatch.setattr(served.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(served.os, "_exit", lambda status: told.append(status))
        process = served.Served(cluster, SimpleNamespace(send=told.append))
        process.watch()
        assert told == [("lost", "away"), 1]
        assert next(looks, "no more") == "no more"

    def test_a_ray_whose_packets_are_lost_is_missed_in_five_seconds(self):
        tick = 0.5  # the dispatcher's, which readyz asks
        a_look = served.CHECK_SECONDS + ray_cluster.LOOK_SECONDS
        assert served.STRIKES * a_look + tick < 5

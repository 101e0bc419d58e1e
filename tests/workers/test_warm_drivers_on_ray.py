"""Drivers that wait for an experiment, on a real Ray: the next experiment really gets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from experiments import Launched, toys_on_path
from sweeps import COPYING, SCORNN
from waiting import wait_until

from eigensweep.workers.cluster import warm_drivers
from eigensweep.workers.cluster.ray_cluster import DriverHandle, RayCluster
from eigensweep.workers.processes.forked import MODULE

Launch = Callable[..., tuple[Launched, DriverHandle]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with toys_on_path(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm_drivers, "QUIET_SECONDS", 0.0)
        patch.setattr(warm_drivers, "LOOK_SECONDS", 1.0)
        patch.setattr(warm_drivers, "MOST_OF_MEMORY", 1.0)
        started = RayCluster.start(num_cpus=2, warm_drivers=1)
        yield started
        started.stop()


@pytest.fixture
def waiting(cluster: RayCluster) -> Any:
    """Return the actor of the driver that waits, once all is there for its first trials."""

    def look() -> Any:
        cluster.keep_warm()
        assert cluster._pool is not None
        drivers = [each.driver for each in cluster._pool._waiting]
        if (
            drivers
            and not drivers[0].is_loading()
            and len(find_servers()) == 1
            and len(find_ready()) == 2
        ):
            return drivers[0].actor
        return None

    return wait_until(look, pause=0.5)


@pytest.fixture
def launch(cluster: RayCluster, tmp_path: Path) -> Launch:
    def launch(id: str, **changes: Any) -> tuple[Launched, DriverHandle]:
        spec = {
            "task": COPYING,
            "model": SCORNN,
            "search": {
                "method": "tpe",
                "trials": 2,
                "space": {"optimizer.lr": {"low": 1e-3, "high": 1e-1}},
            },
            "limits": {"concurrency": 1},
            "training": {"steps": 2},
            **changes,
        }
        experiment = Launched(cluster, tmp_path, id, spec)
        return experiment, experiment.launch()

    return launch


class Unreadable:
    """A ledger that no other process can make again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def find_servers() -> set[int]:
    """Return the ids of the processes that this Ray's trials are forked from, once loaded."""
    own = {each.pid for each in psutil.Process().children(recursive=True)}
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            is_server = MODULE in command and MODULE not in process.parent().cmdline()
            if is_server and int(command[-2]) in own and has_torch(process):
                found.add(process.pid)
    return found


def find_ready() -> set[int]:
    """Return the ids of this Ray's processes that are free, and have not loaded PyTorch."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if "ray::IDLE" in " ".join(process.cmdline()) and not has_torch(process):
                found.add(process.pid)
    return found


def has_torch(process: psutil.Process) -> bool:
    return any("libtorch" in part.path for part in process.memory_maps())


def is_gone(actor: Any) -> bool:
    """Tell whether a driver's process has ended; Ray ends it a moment after it was asked to."""
    try:
        ray.get(actor.state.remote("any"))
    except ray.exceptions.RayActorError:
        return True
    return False


def find_places(experiment: Launched) -> set[int]:
    """Return the ids of the processes in which trials were trained."""
    return {entry.place.pid for entry in experiment.trials()}


def find_numbers(experiment: Launched) -> list[Any]:
    """Return what a search drew and what came out, which follow from the spec alone."""
    return [(each.state, each.params, each.result.value) for each in experiment.trials()]


def test_an_experiment_gets_what_waits_and_leaves_the_driver_to_the_next_one(
    cluster, waiting, launch
):
    servers, ready = find_servers(), find_ready()
    experiment, handle = launch("first")
    assert handle._process.actor == waiting
    assert cluster.find("first") is handle
    experiment.finish(handle)
    assert [entry.state for entry in experiment.trials()] == ["completed"] * 2
    assert find_servers() == servers, "trials were forked from what had been loaded before"
    assert len(ready - find_ready()) == 1, "one of the thin processes had the trials"

    cluster.keep_warm()
    assert cluster.find("first") is None
    following, handle = launch("second")
    assert handle._process.actor == waiting
    following.finish(handle)
    assert not find_places(following) & find_places(experiment)
    assert find_numbers(following) == find_numbers(experiment)


@pytest.mark.slow
class TestWhatIsNotUsedAgain:
    def test_a_driver_that_died_while_it_waited(self, waiting, launch):
        ray.kill(waiting)
        experiment, handle = launch("another")
        assert handle._process.actor != waiting
        experiment.finish(handle)

    def test_a_driver_that_failed(self, cluster, waiting, launch):
        _, handle = launch("failed", search={"space": {"optimizer.lr": "no list"}})
        assert handle.wait(60) == "died"
        assert "no list" in handle.error
        cluster.keep_warm()
        assert waiting not in [each.driver.actor for each in cluster._pool._waiting]
        wait_until(lambda: is_gone(waiting))

    def test_a_driver_that_could_not_read_what_it_was_told(self, cluster, waiting, tmp_path):
        experiment = Launched(cluster, tmp_path, "unread", {})
        handle = cluster.launch("unread", {}, Unreadable(), experiment.options())
        assert handle.wait(60) == "died"
        assert "no number" in handle.error
        wait_until(lambda: is_gone(waiting))

    def test_one_driver_for_two_experiments_at_once(self, cluster, waiting, launch):
        (one, first), (two, second) = launch("one"), launch("two")
        assert first._process.actor != second._process.actor
        one.finish(first)
        two.finish(second)
        cluster.keep_warm()
        assert len(cluster._pool._waiting) == 1

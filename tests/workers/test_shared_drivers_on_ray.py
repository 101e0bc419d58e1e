"""Experiments that share a driver's process, on a real Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from experiments import Launched, toys_on_path
from sweeps import COPYING
from waiting import wait_until

from eigensweep.workers.cluster.ray_cluster import DriverHandle, RayCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with toys_on_path():
        started = RayCluster.start(num_cpus=2, driver_experiments=3)
        yield started
        started.stop()


def make(cluster: RayCluster, folder: Path, id: str, steps: int = 4) -> Launched:
    """Return an experiment of two trials, one at a time; a step takes a twentieth of a second."""
    spec = {
        "task": COPYING,
        "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.05},
        "search": {"method": "grid", "space": {"model.shade": [0, 1]}},
        "training": {"steps": steps, "evaluate_every": 4, "log_every": 4},
        "scheduler": {"rung_every": 4},
        "limits": {"concurrency": 1},
    }
    return Launched(cluster, folder, id, spec)


def begin(experiment: Launched, beside: str | None = None) -> DriverHandle:
    told = experiment.spec, experiment.ledger, experiment.options()
    return experiment.cluster.launch(experiment.id, *told, beside)


def find_states(experiment: Launched) -> list[Any]:
    return [entry.state for entry in experiment.trials()]


def has_ended(driver: DriverHandle) -> bool:
    """Ray returns from `kill` before the process has ended: it may still answer for a moment."""
    try:
        ray.get(driver._process.actor.state.remote(driver.experiment))
    except ray.exceptions.RayActorError:
        return True
    return False


def test_two_experiments_train_at_the_same_time_in_one_driver_and_one_may_be_cancelled(
    cluster, tmp_path
):
    one, two = make(cluster, tmp_path, "one"), make(cluster, tmp_path, "two", steps=100_000)
    first, second = begin(one), begin(two, "one")
    assert first.process == second.process
    two.until(lambda: any(entry.place for entry in two.trials()))
    two.ledger.cancel()
    one.finish(first)
    two.finish(second)
    assert find_states(one) == ["completed"] * 2
    assert two.ledger.read("end") == ["cancelled", "cancelled on request"]
    assert set(find_states(two)) == {"cancelled"}
    wait_until(lambda: has_ended(first))  # nobody has the process any more


def test_one_of_two_is_paused_and_goes_on_later_beside_the_other_in_the_same_process(
    cluster, tmp_path
):
    stays, rests = make(cluster, tmp_path, "stays", 100_000), make(cluster, tmp_path, "rests", 40)
    first, second = begin(stays), begin(rests, "stays")
    rests.until(lambda: any(entry.reports for entry in rests.trials()))
    rests.ledger.want("pause")
    rests.finish(second)
    assert rests.ledger.read("history")[-1] == ["pause", "pause"]
    assert set(find_states(rests)) <= {"waiting", "completed"}
    reached = stays.trials()[0].reached
    stays.until(lambda: stays.trials()[0].reached > reached)

    rests.ledger.want("run")
    third = begin(rests, "stays")
    assert third.process == first.process
    rests.finish(third)
    assert find_states(rests) == ["completed"] * 2
    ends = [h[1] for h in rests.ledger.read("history") if h[0] == "finish"]
    assert sorted(ends) == [0, 1]
    assert (stays.trials()[0].state, stays.trials()[0].attempt) == ("running", 1)
    stays.ledger.cancel()
    stays.finish(first)


@pytest.mark.slow
def test_one_that_fails_leaves_the_others_their_process_and_nobody_joins_them(cluster, tmp_path):
    good, bad = make(cluster, tmp_path, "good", steps=60), make(cluster, tmp_path, "bad")
    bad.spec["search"]["space"] = {"optimizer.lr": "no list"}
    first, second = begin(good), begin(bad, "good")
    assert second.wait(60) == "died"
    assert "no list" in second.error
    later = make(cluster, tmp_path, "later")
    third = begin(later, "good")
    assert third.process != first.process
    good.finish(first)
    later.finish(third)
    assert {len(each.trials()) for each in (good, later)} == {2}


@pytest.mark.slow
def test_after_the_end_of_a_shared_process_each_experiment_goes_on_from_its_commits(
    cluster, tmp_path
):
    all_three = [make(cluster, tmp_path, f"killed-{n}", steps=100) for n in range(3)]
    for each in all_three:
        each._options["checkpoint_seconds"] = 0.2
    handles = [begin(all_three[0])]
    handles += [begin(each, all_three[0].id) for each in all_three[1:]]
    assert len({handle.process for handle in handles}) == 1
    handles[0].kill()
    assert [handle.wait(60) for handle in handles] == ["died"] * 3
    assert {handle.error.partition(":")[0] for handle in handles} == {
        "the driver's process died, which several experiments shared"
    }
    wait_until(lambda: all(cluster.find(each.id) is None for each in all_three))
    for each, handle in [(each, begin(each)) for each in all_three]:
        each.finish(handle)
        assert find_states(each) == ["completed"] * 2

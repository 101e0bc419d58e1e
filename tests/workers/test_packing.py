"""Ray's accounts of devices: the trials of an engine land on one GPU. The GPUs are made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import ray
import torch
from experiments import Cluster, Launched, toys_on_path
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from sweeps import spec
from waiting import PATIENCE

from eigensweep.protocol.shares import Capacity, share_of
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.driver.nodes.capacity import list_living_nodes, look_for_room

pytestmark = pytest.mark.slow

GPUS = 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with toys_on_path():
        started = Cluster.start(num_cpus=4, num_gpus=GPUS)
        yield started
        started.stop()


class Trial:
    """Takes a trial's share, and says which GPU it is a share of."""

    def gpus(self) -> list[str]:
        return [str(gpu) for gpu in ray.get_gpu_ids()]


def look(resources: ResourcesConfig) -> Capacity:
    return look_for_room(resources, 1, may_change=False, nodes=list_living_nodes())


@pytest.mark.parametrize(("lanes", "most"), [(3, None), (8, None), (8, 4)])
def test_each_gpu_gets_as_many_trials_as_its_engine_takes(cluster, lanes, most):
    resources = ResourcesConfig(cpus=1, gpus=1, lanes=lanes)
    share, room = share_of(resources, 1, lanes, most), look(resources)
    assert most is not None or room.trials == GPUS * share.trials
    groups = [placement_group([share.resources]) for _ in range(GPUS * share.trials)]
    actors = [
        ray.remote(Trial)
        .options(
            num_cpus=share.resources["CPU"],
            num_gpus=share.resources["GPU"],
            scheduling_strategy=PlacementGroupSchedulingStrategy(group),
        )
        .remote()
        for group in groups
    ]
    found = Counter(gpu for gpus in ray.get([a.gpus.remote() for a in actors]) for gpu in gpus)
    assert found == {str(gpu): share.trials for gpu in range(GPUS)}
    for group in groups:
        remove_placement_group(group)


def test_the_nodes_are_listed_with_what_is_free(cluster):
    (node,) = cluster.list_nodes()
    assert node.alive
    assert (node.total.cpus, node.total.gpus) == (4, GPUS)
    assert 0 < node.free.memory <= node.total.memory


def test_memory_that_is_reserved_bounds_what_runs_at_once(cluster):
    (node,) = cluster.list_nodes()
    resources = ResourcesConfig(cpus=0.01, memory=node.total.memory // 2 - 1)
    share = share_of(resources, 1, None)
    assert look(resources).trials == 2
    groups = {group.ready(): group for group in (placement_group([share.resources]) for _ in "123")}
    ready, waiting = ray.wait(list(groups), num_returns=2, timeout=PATIENCE)
    assert (len(ready), len(waiting)) == (2, 1)
    assert ray.wait(waiting, timeout=1) == ([], waiting)
    remove_placement_group(groups.pop(ready[0]))
    assert ray.wait(waiting, timeout=PATIENCE) == (waiting, [])
    for group in groups.values():
        remove_placement_group(group)


def test_there_is_no_room_where_no_node_has_so_much(cluster):
    room = look(ResourcesConfig(cpus=5, gpus=1))
    assert room.trials == 0
    assert (
        "a trial needs 5 CPU, 1 GPU, and no node has that; there are 4 CPU, 2 GPU" in room.problem
    )


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch is built for CUDA")
@pytest.mark.parametrize("lanes", [None, 2])
def test_gpus_that_pytorch_cannot_use_fail_no_trial_of_a_sweep(cluster, tmp_path, lanes):
    rates = [1e-1 / (1 + k) for k in range(40)]
    resources = {"cpus": 1, "gpus": 1, "lanes": lanes}
    content = spec({"space": {"optimizer.lr": rates}}, resources=resources)
    e = Launched(cluster, tmp_path, f"gpus{lanes}", content)
    handle = e.launch()
    told = e.until(lambda: [n for n in e.ledger.read("notices") if n["kind"] == "nodes"])
    assert "new trials wait, because 1 of 1 node is left out" in told[0]["words"]
    (node,) = [n for n in e.ledger.read("notices") if n["kind"] == "node"]
    assert "offers GPUs, and its PyTorch" in node["words"]
    assert {trial.state for trial in e.trials()} <= {"waiting", "running"}
    e.ledger.cancel()
    e.finish(handle)
    assert {trial.state for trial in e.trials()} == {"cancelled"}

"""Trials that need no GPU leave the processors of GPU nodes to those that do: alone and on Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from clocks import Clock
from experiments import Cluster, Launched, toys_on_path
from file_ledger import FileLedger
from sweeps import COPYING
from waiting import PATIENCE, wait_until

from eigensweep.protocol.fair_shares import Demand
from eigensweep.protocol.shares import Share
from eigensweep.workers.driver.nodes.cpu_nodes import LOOK_SECONDS, CpuNodes
from eigensweep.workers.driver.nodes.fair_share import FairShare
from eigensweep.workers.driver.tune import trainable

CPU, GPU = Share({"CPU": 1.0}), Share({"CPU": 1.0, "GPU": 1.0})
KINDS = {"a": {"CPU": 2.0}, "b": {"CPU": 3.0}, "g": {"CPU": 9.0, "GPU": 2.0}}


class Nodes:
    """Nodes of a cluster with what is free on each, and the choice among them."""

    def __init__(self, **kinds: dict[str, float]) -> None:
        self.clock, self.kinds = Clock(), kinds
        self.free = {name: dict(kind) for name, kind in kinds.items()}
        self.choice = CpuNodes(self.list, lambda: self.free, self.clock)

    def list(self) -> list[dict[str, object]]:
        return [
            {"NodeID": name, "Resources": kind, "Labels": {"zone": name}}
            for name, kind in self.kinds.items()
        ]

    def choose(self, times: int, share: Share = CPU, **options: object) -> list[str | None]:
        return [self.choice.choose(share, **options) for _ in range(times)]


def test_nodes_without_gpus_are_filled_before_ray_may_choose():
    nodes = Nodes(**KINDS)
    assert nodes.choose(7) == ["b", "a", "b", "a", "b", None, None]
    nodes.free["a"]["CPU"] = 1.0
    nodes.clock.now += LOOK_SECONDS
    nodes.free["b"]["CPU"] = 0.0
    assert nodes.choose(2) == ["a", None]


def test_gpu_trials_and_a_cluster_of_one_kind_are_left_to_ray():
    assert Nodes(**KINDS).choose(1, GPU) == [None]
    assert Nodes(a={"CPU": 2.0}, b={"CPU": 2.0}).choose(1) == [None]
    assert Nodes(g={"CPU": 2.0, "GPU": 1.0}, head={}).choose(1) == [None]


def test_a_node_that_a_trial_may_not_go_to_is_not_chosen():
    assert Nodes(**KINDS).choose(4, avoid=("b",)) == ["a", "a", None, None]
    there = Share({"CPU": 1.0}, labels={"zone": "a"})
    assert Nodes(**KINDS).choose(3, there) == ["a", "a", None]
    assert Nodes(**KINDS).choose(1, Share({"CPU": 4.0})) == [None]


def test_a_trial_without_a_gpu_prefers_the_chosen_node(monkeypatch):
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(trainable, "CPU_NODES", Nodes(**KINDS).choice)
    monkeypatch.setattr(
        trainable, "placement_group", lambda *args, **kwargs: asked.append((*args, kwargs))
    )
    trainable.OwnPlace(CPU, ("z",)).to_placement_group()
    selector = [{"ray.io/node-id": "!in(z)"}]
    where = {"bundle_label_selector": selector, "_soft_target_node_id": "b"}
    assert asked == [([{"CPU": 1.0}], "STRICT_PACK", where)]


def test_trials_leave_gpu_nodes_while_others_wait_there(tmp_path):
    ledger, clock = FileLedger(tmp_path / "ledger.json"), Clock()
    fair = FairShare(ledger, clock)

    def look(want: Demand, *others: tuple[str, str, Demand, int]) -> bool:
        ledger.contend(*others)
        clock.now += LOOK_SECONDS * 10
        fair.count(lambda: want)
        return fair.leaves_gpus

    cpus, gpus = Demand(6, {"CPU": 1 / 6}), Demand(2, {"CPU": 1 / 6, "GPU": 0.5})
    assert not look(cpus)
    assert not look(cpus, ("e0", "b", cpus, 0))
    assert look(cpus, ("e0", "b", gpus, 1))
    assert not look(cpus, ("e0", "b", gpus, 2)), "it has its share"
    assert not look(gpus, ("e0", "b", gpus, 0))


def sweep(trials: int, steps: int, **more: object) -> dict[str, object]:
    return {
        "task": COPYING,
        "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.05},
        "search": {"space": {"model.shade": list(range(trials))}},
        "training": {"steps": steps, "evaluate_every": steps, "log_every": steps},
        **more,
    }


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(900)
def test_on_a_real_ray_trials_fill_cpu_nodes_first(tmp_path):
    import ray

    program = str(Path(sys.executable).parent / "ray")
    with toys_on_path(), ExitStack() as stack:
        cluster = Cluster.start(num_cpus=2)
        stack.callback(cluster.stop)
        address = ray.get_runtime_context().gcs_address

        def nodes(*, with_gpus: bool) -> set[str]:
            living = (n for n in ray.nodes() if n["Alive"])
            return {n["NodeID"] for n in living if bool(n["Resources"].get("GPU")) == with_gpus}

        def join(gpus: int) -> subprocess.Popen[bytes]:
            """Start a node and return it when it has joined; if it ended before, start another."""
            command = [program, "start", f"--address={address}", "--num-cpus=2", "--block"]
            before, deadline = nodes(with_gpus=gpus > 0), time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                node = subprocess.Popen(
                    [*command, f"--num-gpus={gpus}"], start_new_session=True, env=os.environ.copy()
                )
                stack.callback(node.wait)
                stack.callback(node.terminate)
                joined = wait_until(lambda: nodes(with_gpus=gpus > 0) - before or node.poll())  # noqa: B023
                if isinstance(joined, set):
                    return node
            raise AssertionError("no node joins")

        join(gpus=0)
        node = join(gpus=2)

        def places(e: Launched) -> list[str]:
            return [t.place.node_id for t in e.trials() if t.place is not None]

        narrow = sweep(12, 60, limits={"concurrency": 4})
        narrow = Launched(cluster, tmp_path, "narrow", narrow).run()
        assert len(places(narrow)) == 12
        assert set(places(narrow)) <= nodes(with_gpus=False)

        wide = Launched(cluster, tmp_path, "wide", sweep(400, 20))
        handle = wide.launch()
        wide.until(lambda: nodes(with_gpus=True) & set(places(wide)))  # where nothing else is free
        gpus = sweep(2, 20, resources={"gpus": 1})
        wide.ledger.contend(("gpus", "b", Demand(2, {"CPU": 1 / 6, "GPU": 0.5}), 0))
        waiting = Launched(cluster, tmp_path, "gpus", gpus)
        other = waiting.launch()
        begun = waiting.until(lambda: places(waiting))
        assert set(begun) == nodes(with_gpus=True)
        assert [t.state for t in wide.trials()].count("running") >= 3
        for e, its in ((wide, handle), (waiting, other)):
            e.ledger.cancel()
            e.finish(its)

        node.terminate()
        ended = wait_until(
            lambda: [n for n in cluster.list_nodes() if not n.alive], cluster.list_nodes
        )
        assert [n.id for n in ended] == begun[:1]
        assert abs(ended[0].gone_at - time.time()) < 600
        assert ended[0].address

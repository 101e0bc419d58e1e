"""A node whose machine will be taken away: as a driver and a trial see it, and on a real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from clocks import Clock
from experiments import Cluster, Launched, toys_on_path
from sweeps import COPYING, Bench, at, spec
from test_store_markers import order_in
from waiting import PATIENCE, wait_until

from eigensweep.store import marks
from eigensweep.store.checkpoints import Store
from eigensweep.store.marks import leave_mark, pause_mark
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.store.places.store_watch import StoreWatch
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.nodes import capacity
from eigensweep.workers.driver.nodes.draining import LOOK_SECONDS, Draining

RAY = str(Path(sys.executable).parent / "ray")


def test_the_marks_of_an_experiment_are_looked_at_together(tmp_path, monkeypatch):
    looks = []

    class Listed(FolderFiles):
        look_seconds = 60.0

        def names(self, folder: str) -> list[str]:
            looks.append(folder)
            return super().names(folder)

    files = Listed(tmp_path)
    monkeypatch.setattr(marks, "_files", lambda _: files)
    leave_mark(tmp_path, "e1", 3, 1).touch()
    told = [n for n in range(64) if leave_mark(tmp_path, "e1", n, 1).exists()]
    assert not pause_mark(tmp_path, "e1").exists()
    assert told == [3]
    assert looks == ["e1/marks"]


def test_its_trials_are_told_to_leave_once_and_others_are_not(tmp_path):
    (tmp_path / "e1").mkdir()
    clock, nodes = Clock(), {"n1": 1.5e9}
    draining = Draining("e1", str(tmp_path), StoreWatch("e1"), lambda: nodes, clock)
    entries = [
        SimpleNamespace(number=n, attempt=1, place=at(node, host))
        for n, (node, host) in enumerate((("n1", "node7"), ("n2", "node8")))
    ]
    draining.look(lambda: entries)
    left = [leave_mark(tmp_path, "e1", number, 1) for number in (0, 1)]
    assert [mark.exists() for mark in left] == [True, False]
    (notice,) = draining.notices()
    assert notice.node == "node7"
    assert notice.words.startswith("a node drains until ")
    del entries[0]
    clock.now += LOOK_SECONDS
    draining.look(lambda: entries)
    assert not left[0].exists(), "it has left"
    nodes.clear()
    clock.now += LOOK_SECONDS
    draining.look(lambda: entries)
    assert draining.notices() == []


def test_a_trial_told_to_leave_commits_and_its_next_is_not(tmp_path):
    order = order_in(tmp_path)
    attempt = Attempt(order, "cpu")
    leave_mark(tmp_path, "e1", order.number, 1).touch()
    attempt.replicates[0].training.run(3, lambda: None, 60.0)
    report = attempt.advance()
    assert (report.outcome, report.lost_by) == (None, "pause")
    assert Store(tmp_path).progress("e1/00003/0").step >= 3
    assert Attempt(replace(order, attempt=2), "cpu").advance().lost is None


def test_no_trial_goes_to_it_and_leaving_it_counts_no_retry(tmp_path):
    b = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1]}}), retries=0)
    job = b.sweep.next_job()
    b.sweep.begin(0, job.attempt, at("n1"))
    b.sweep.cordons.draining = {"n1": 1.5e9}
    for _ in range(3):
        b.sweep.lose(0, job.attempt, "paused on request", by="pause", place=at("n1"))
        job = b.sweep.next_job()
        assert job.avoid == ("n1",)
        b.sweep.begin(0, job.attempt, at("n1"))
    reasons = {h[3] for h in b.ledger.read("history") if h[0] == "interrupt"}
    assert reasons == {"its node drains: it committed and goes on elsewhere"}


def test_its_places_do_not_count(monkeypatch):
    nodes = [{"NodeID": id, "Alive": True, "Resources": {"CPU": 4.0}, "Labels": {}} for id in "ab"]
    monkeypatch.setattr("ray.nodes", lambda: nodes)
    share = capacity.share_of(capacity.ResourcesConfig(cpus=1), 1, None)
    assert capacity.count_slots(share) == 8
    monkeypatch.setattr(capacity, "find_draining", lambda: {"a": 0.0})
    assert capacity.count_slots(share) == 4
    assert capacity.find_nodes(share) == {"b"}


def drain_by_command(node: subprocess.Popen[bytes], address: str, id: str) -> None:
    """Do what somebody does who was told of a machine's end."""
    command = [RAY, "drain-node", f"--address={address}", f"--node-id={id}"]
    command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=spot"]
    subprocess.run([*command, "--deadline-remaining-seconds=600"], check=True)


def drain_by_signal(node: subprocess.Popen[bytes], address: str, id: str) -> None:
    """Do what Kubernetes does with a pod that is to end."""
    node.terminate()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("drain", [drain_by_command, drain_by_signal])
def test_trials_leave_a_draining_node_and_end_elsewhere(tmp_path, drain):
    import ray

    with toys_on_path():
        cluster = Cluster.start(num_cpus=1)
        context = ray.get_runtime_context()
        address, here = context.gcs_address, context.get_node_id()
        start = f"{RAY} start --address={address} --num-cpus=1 --block"
        as_in_a_pod = ["bash", "-c", "--", f"ulimit -n 65536; {start}"]
        env = {**os.environ, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(PATIENCE)}
        node = subprocess.Popen(as_in_a_pod, start_new_session=True, env=env)
        try:

            def others() -> list[str]:
                return [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeID"] != here]

            (there,) = wait_until(others, ray.nodes)
            model = {"name": "toy_slow", "hidden_size": 4, "seconds": 0.05}
            content = {
                "task": COPYING,
                "model": model,
                "search": {"space": {"model.shade": list(range(3))}},
                "training": {"steps": 200, "evaluate_every": 50, "log_every": 50},
            }
            e = Launched(cluster, tmp_path, "drains", content)
            handle = e.launch()
            e.until(lambda: [t for t in e.trials() if t.place and t.place.node_id == there])
            drain(node, address, there)
            e.until(lambda: [n for n in e.ledger.read("notices") if "drains" in n["words"]])
            (shown,) = [each for each in cluster.list_nodes() if each.id == there]
            assert shown.drains_until or not shown.alive
            left = e.until(lambda: [h for h in e.ledger.read("history") if h[0] == "interrupt"])
            assert "its node drains" in left[0][3]
            e.finish(handle)
            assert [t.state for t in e.trials()] == ["completed"] * 3
            assert {t.place.node_id for t in e.trials()} == {here}
            assert max(t.attempt for t in e.trials()) == 2
        finally:
            node.terminate()
            node.wait()
            cluster.stop()

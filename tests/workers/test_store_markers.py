"""A node that sees another store than its driver: its attempts are refused, nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from clocks import Clock
from orders import make_order
from sweeps import Bench, at, spec

from eigensweep.protocol.code import own_parts
from eigensweep.protocol.messages import Report
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StoreAwayError, disk_failure
from eigensweep.store.places.store_watch import StoreWatch
from eigensweep.store.upkeep import store_markers
from eigensweep.store.upkeep.store_markers import LOOK_SECONDS, StoreMarker, find_missing_commit
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.tune.searcher import Recorder
from eigensweep.workers.processes.runner import LOST, REPORT, Runner

HELPERS = Path(__file__).parents[1] / "helpers"
PARTS = {"torch": "2.13.0"}


def order_in(folder, **fields):
    parsed = ExperimentSpec.model_validate(spec({"space": {}}))
    config = parsed.trial(Point("scornn", {}))
    rungs = tuple(parsed.rung_steps(config))
    return make_order(
        config=config.model_dump(mode="json"), rungs=rungs, storage=str(folder), **fields
    )


@pytest.fixture
def step(monkeypatch):
    """Return a function that lets a trial's process take its first step of an order."""

    def take(order):
        return Runner(order.to_dict()).train()

    return take


class TestAnAttempt:
    def test_trains_where_it_finds_what_the_driver_left(self, tmp_path, step):
        marker = store_markers.write(Store(tmp_path), "e1", own_parts())
        told = step(order_in(tmp_path, marker=marker))
        assert (told[LOST], json.loads(told[REPORT])["outcome"], told["step"]) == (False, None, 5)

    def test_is_refused_by_a_folder_that_only_has_the_same_name(self, tmp_path, step):
        marker = store_markers.write(Store(tmp_path / "driver"), "e1", own_parts())
        (tmp_path / "node").mkdir()
        told = step(order_in(tmp_path / "node", marker=marker))
        report = json.loads(told[REPORT])
        assert (told[LOST], report["outcome"], report["lost_by"]) == (True, None, "disk")
        assert f"{tmp_path / 'node'} is not the store of the driver here" in report["lost"]
        assert list((tmp_path / "node").iterdir()) == [], "nothing was written there"

    def test_is_refused_by_an_older_copy_of_the_store(self, tmp_path, step):
        store_markers.write(Store(tmp_path / "store"), "e1", own_parts())
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        marker = store_markers.write(Store(tmp_path / "store"), "e1", own_parts())
        assert step(order_in(tmp_path / "copy", marker=marker))[LOST]

    def test_is_lost_and_has_not_failed_when_its_store_vanishes(self, tmp_path):
        attempt = Attempt(order_in(tmp_path / "store"), "cpu")
        shutil.rmtree(tmp_path / "store")
        with pytest.raises(StoreAwayError, match="another store, or an empty folder") as error:
            attempt.advance()
        assert disk_failure(error.value) is error.value

    def test_is_lost_and_has_not_failed_where_the_marker_is_damaged(self, tmp_path, step):
        store = Store(tmp_path)
        marker = store_markers.write(store, "e1", own_parts())
        store.files.write(f"e1/nonce-{marker}.json", b"\0" * 20)
        told = step(order_in(tmp_path, marker=marker))
        report = json.loads(told[REPORT])
        assert (told[LOST], report["lost_by"]) == (True, "disk")
        assert "which the driver left there, is no JSON" in report["lost"]

    def test_says_which_file_differs_from_the_drivers(self, tmp_path, step):
        parts = own_parts() | {"training/training.py": "other", "torch": "2.1.0"}
        marker = store_markers.write(Store(tmp_path), "e1", parts)
        order = order_in(tmp_path, marker=marker)
        order = replace(order, code=replace(order.code, digest="other", packages="other"))
        report = json.loads(step(order)[REPORT])
        assert report["lost_by"] == "node"
        assert f"torch {own_parts()['torch']} instead of 2.1.0" in report["lost"]
        assert "training/training.py" in report["lost"]


class TestTheDriver:
    def test_leaves_one_marker_and_removes_that_of_an_earlier_one(self, tmp_path):
        store, clock = Store(tmp_path), Clock()
        earlier = StoreMarker(store, "e1", PARTS, StoreWatch("e1", clock), clock).refresh()
        left = StoreMarker(store, "e1", PARTS, StoreWatch("e1", clock), clock)
        assert left.refresh() == (marker := left.refresh())
        assert store_markers.read(store, "e1", marker) == PARTS
        with pytest.raises(StoreAwayError):
            store_markers.read(store, "e1", earlier)

    @pytest.mark.parametrize("is_damaged", [False, True])
    def test_leaves_another_where_it_is_gone_or_damaged(self, tmp_path, is_damaged):
        store, clock = Store(tmp_path), Clock()
        left = StoreMarker(store, "e1", PARTS, StoreWatch("e1", clock), clock)
        first = left.refresh()
        shutil.rmtree(tmp_path / "e1")
        if is_damaged:
            store.files.write(f"e1/nonce-{first}.json", b"\0" * 20)
        clock.now += LOOK_SECONDS
        assert (second := left.refresh()) not in (None, first)
        assert store_markers.read(store, "e1", second) == PARTS

    def test_waits_with_words_while_the_store_cannot_be_written(self, tmp_path):
        (tmp_path / "e1").write_text("a file in the place of the folder")
        clock = Clock()
        watch = StoreWatch("e1", clock)
        left = StoreMarker(Store(tmp_path), "e1", PARTS, watch, clock)
        assert left.refresh() is None
        assert "could not be used since" in watch.notice.words
        assert "cannot read" in watch.notice.words
        (tmp_path / "e1").unlink()
        clock.now += LOOK_SECONDS
        assert left.refresh() is not None
        assert watch.notice is None

    def test_finds_what_an_attempt_says_it_committed(self, tmp_path):
        order = order_in(tmp_path)
        report = Attempt(order, "cpu").advance()
        assert report.committed == ((0, 5),)
        assert find_missing_commit(Store(tmp_path), order, report) is None

    @pytest.mark.parametrize(
        ("order", "committed"), [({}, ((0, 6),)), ({"attempt": 2}, ((0, 5),)), ({}, ((1, 5),))]
    )
    def test_says_what_is_lacking(self, tmp_path, order, committed):
        made = order_in(tmp_path)
        report = Attempt(made, "cpu").advance()
        claimed = replace(report, committed=committed)
        lack = find_missing_commit(Store(tmp_path), replace(made, **order), claimed)
        assert f"step {committed[0][1]} of seed {committed[0][0]} is committed" in lack
        assert "It writes to another store" in lack

    def test_records_what_is_reported_with_an_end_in_one_write(self, tmp_path):
        b = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1]}}))
        order = b.next_order()
        b.sweep.begin(order.number, order.attempt)
        on_its_way = Report(5, {"objective": 0.5})
        result = Result(value=0.25, step=10)
        last = Report(10, {"objective": 0.25}, outcome="completed", result=result)
        trial = SimpleNamespace(order=order)
        for trial.report in (on_its_way, last):
            Recorder(b).on_trial_result(1, [], trial, {})
        assert b.ledger.read("history")[1:] == [["report", 0, 1, 5]]
        Recorder(b).on_trial_complete(1, [], trial)
        ends = [["report", 0, 1, 10], ["finish", 0, 1, "completed"]]
        assert b.ledger.read("history")[2:] == ends
        assert b.ledger.load()[0].reports == {5: {"objective": 0.5}, 10: {"objective": 0.25}}

    def test_does_not_record_an_end_that_it_cannot_see(self, tmp_path, monkeypatch):
        b = Bench(tmp_path, spec({"space": {"optimizer.lr": [1e-1]}}), retries=0)
        b.find_nodes = lambda: {str(os.getpid()), "another"}
        monkeypatch.setattr(
            b,
            "find_missing_commit",
            lambda order, report: find_missing_commit(store, order, report),
        )
        store, there = Store(tmp_path / "store"), tmp_path / "elsewhere"
        for storage, state in ((there, "waiting"), (tmp_path / "store", "completed")):
            order = replace(b.next_order(), storage=str(storage))
            b.sweep.begin(order.number, order.attempt)
            report, attempt = None, Attempt(order, "cpu")
            while report is None or report.outcome is None:
                report = attempt.advance()
            report = replace(report, place=at(str(os.getpid())))
            trial = SimpleNamespace(order=order, report=report)
            Recorder(b).on_trial_complete(1, [], trial)
            assert b.sweep.entries[0].state == state
        (reason,) = [h[3] for h in b.ledger.read("history") if h[0] == "interrupt"]
        assert "It writes to another store" in reason
        assert b.sweep.entries[0].result.value is not None


def can_mount() -> bool:
    command = ["unshare", "--mount", "mount", "--make-rprivate", "/"]
    return shutil.which("unshare") is not None and not subprocess.run(command).returncode


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount")
def test_a_node_with_another_folder_is_left_out(tmp_path, monkeypatch):
    """Real nodes: the second one has an empty folder where the first one has the store.

    The first one is occupied at first, so that a trial goes to the second one, however long the
    processes of each take to start.
    """
    import ray
    from experiments import Cluster, Launched
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
    from waiting import wait_until

    @ray.remote(num_cpus=1)
    class Occupant:
        def answer(self) -> None:
            """Return as soon as the process is up."""

    monkeypatch.setenv("PYTHONPATH", str(HELPERS), prepend=os.pathsep)
    (tmp_path / "store").mkdir()
    cluster = Cluster.start(num_cpus=1)
    context = ray.get_runtime_context()
    address, here = context.gcs_address, context.get_node_id()
    command = (
        f"mount --make-rprivate / && mount -t tmpfs tmpfs {tmp_path / 'store'} && exec "
        f"{Path(sys.executable).parent / 'ray'} start --address={address} --num-cpus=2 --block"
    )
    node = subprocess.Popen(["unshare", "--mount", "bash", "-c", command], start_new_session=True)
    try:
        wait_until(lambda: len([n for n in ray.nodes() if n["Alive"]]) == 2, ray.nodes)
        affinity = NodeAffinitySchedulingStrategy(here, soft=False)
        occupant = Occupant.options(scheduling_strategy=affinity).remote()
        ray.get(occupant.answer.remote())
        rates = [1e-1, 1e-2, 1e-3]
        e = Launched(cluster, tmp_path, "split", spec({"space": {"optimizer.lr": rates}}))
        handle = e.launch()

        def find_reasons() -> list[str]:
            return [h[3] for h in e.ledger.read("history") if h[0] == "interrupt"]

        e.until(find_reasons)
        ray.kill(occupant)
        e.finish(handle)
        assert [trial.state for trial in e.trials()] == ["completed"] * 3
        reasons = find_reasons()
        assert all("is not the store of the driver here" in reason for reason in reasons)
        store = Store(tmp_path / "store")
        assert [store.points(f"split/{n:05d}/0")[-1].step for n in range(3)] == [20] * 3
    finally:
        node.terminate()
        node.wait()
        cluster.stop()

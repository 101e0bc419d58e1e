"""Which trials count as stalled, with a clock and commits that a test makes up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clocks import Clock
from helpers.waiting import wait_until
from orders import make_order
from ray.tune.experiment import Trial
from sweeps import Bench, spec

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import Place
from eigensweep.protocol.patience import OWN_PACE, STALL_SECONDS, START_SECONDS
from eigensweep.protocol.states import INSTRUCTIVE, OUTCOMES
from eigensweep.results.ranking import RANKED
from eigensweep.store.checkpoints import Progress, Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.places.durable_files import StorageError
from eigensweep.workers.driver.stalls import Stall, StallWatch, read_progress
from eigensweep.workers.driver.tune.searcher import Recorder

CHECKPOINT_SECONDS = 10.0
PLACE = Place("node7", 4711, "cpu")


class Scene:
    """One running trial, what it has committed, and who watches it."""

    def __init__(self, limit: float | None) -> None:
        self.clock = Clock()
        config = {"training": {"steps": 1000}}
        self.entry = TrialEntry(3, "scornn", {}, config, "", "running", attempt=1, place=PLACE)
        self.progress: Progress | Exception = Progress(1, 0, -1)
        self.told: list[int] = []
        self.in_lanes = set[int]()
        self.watch = StallWatch(
            self.read,
            limit,
            CHECKPOINT_SECONDS,
            self.clock,
            lambda _, steps: self.told.append(steps),
        )

    def read(self, entry: TrialEntry) -> tuple[Progress, ...]:
        if isinstance(self.progress, Exception):
            raise self.progress
        return (self.progress,)

    def commit(self, step: int) -> None:
        assert isinstance(self.progress, Progress)
        self.progress = replace(self.progress, commits=self.progress.commits + 1, step=step)

    def wait(self, seconds: float) -> list[Stall]:
        """Let time pass, in small parts; return whoever was found to be stalled."""
        found: list[Stall] = []
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now = min(until, self.clock.now + seconds / 100)
            found += self.watch.look(lambda: [self.entry], self.in_lanes)
        return found


def test_a_trial_without_commits_is_stalled_and_named_once():
    scene = Scene(limit=100)
    scene.wait(20)
    scene.commit(step=40)
    assert not scene.wait(100 + CHECKPOINT_SECONDS - 5)
    (stall,) = scene.wait(20)
    assert stall.entry.number == 3
    for words in ("node node7, process 4711", "step 40", "place is free", "limits.stall_seconds"):
        assert words in stall.words
    assert "\n" not in stall.words  # pages show the last line


def test_what_is_committed_between_rungs_is_told():
    scene = Scene(limit=100)
    for step in (4, 10, 19, 20, 700):
        scene.commit(step)
        scene.wait(20)
    assert scene.told == [10, 20, 700]
    scene.entry = replace(scene.entry, attempt=2, reports={800: {}})
    scene.commit(step=805)
    scene.wait(20)
    assert scene.told[-1] == 700, "its last rung told more"


def test_little_is_told_after_a_minute():
    scene = Scene(limit=100)
    scene.wait(20)
    for step in range(1, 6):
        scene.commit(step)
        scene.wait(26)
    assert scene.told == [2, 5]
    scene.commit(6)
    scene.wait(80)
    assert scene.told == [2, 5, 6]


def test_seeds_that_are_added_are_told_from_where_they_begin():
    scene = Scene(limit=100)
    scene.entry = replace(scene.entry, attempt=2, reports={1000: {}})
    for step in (500, 520, 523):  # the mean of two that have ended and two that train
        scene.commit(step)
        scene.wait(20)
    assert scene.told == [520]


def test_in_lanes_steps_are_told_and_nothing_is_stalled():
    scene = Scene(limit=100)
    scene.in_lanes = {3}
    scene.commit(step=40)
    assert not scene.wait(1000)
    scene.commit(step=80)
    assert not scene.wait(50)
    assert scene.told[-1] == 80


def test_a_trial_that_commits_goes_on_for_ever():
    scene = Scene(limit=100)
    for step in range(1, 30):
        scene.commit(step)
        assert not scene.wait(90)


def test_the_default_is_half_an_hour_or_ten_longest_pauses():
    scene = Scene(limit=None)
    scene.wait(50)
    slow = 2 * STALL_SECONDS / OWN_PACE
    for step in (1, 2):
        scene.commit(step)
        assert not scene.wait(slow)
    assert not scene.wait(1.4 * STALL_SECONDS), "it has shown that it is slow"
    assert len(scene.wait(STALL_SECONDS)) == 1


def test_a_process_that_starts_has_ten_minutes_at_any_limit():
    scene = Scene(limit=1)
    scene.progress = Progress(0, 0, -1)
    assert not scene.wait(START_SECONDS - 5)
    (stall,) = scene.wait(20)
    assert "it had not taken its first one" in stall.words


def test_a_new_attempt_is_waited_for_anew():
    scene = Scene(limit=100)
    scene.wait(80)
    scene.entry, scene.progress = replace(scene.entry, attempt=2), Progress(2, 0, -1)
    assert not scene.wait(100)
    assert len(scene.wait(30)) == 1


def test_a_store_that_cannot_be_read_stalls_nobody():
    scene = Scene(limit=100)
    scene.wait(10)
    before, scene.progress = scene.progress, StorageError("cannot read head.json")
    assert not scene.wait(1000)
    scene.progress = before
    assert not scene.wait(90), "nor for the time in which it could not commit"
    assert len(scene.wait(40)) == 1


def test_a_store_that_hangs_stalls_nobody():
    scene = Scene(limit=100)
    scene.wait(10)

    def hang(entry: TrialEntry) -> tuple[Progress, ...]:
        scene.watch._read = scene.read
        scene.clock.now += 1000
        return scene.read(entry)

    scene.watch._read = hang
    assert not scene.wait(1)
    assert not scene.wait(90)
    assert len(scene.wait(40)) == 1


def test_looks_that_take_long_leave_the_driver_most_of_its_time():
    """As 200 trials of five seeds in an object store: two requests each, one after another."""
    scene = Scene(limit=3600.0)
    trials = [replace(scene.entry, number=number) for number in range(150)]
    reads = 0

    def read(entry: TrialEntry) -> tuple[Progress, ...]:
        nonlocal reads
        reads += 1
        scene.clock.now += 0.5
        return (Progress(1, 0, -1),)

    scene.watch._read = read
    stalled = []
    while scene.clock.now < 6 * 3600.0:
        stalled += scene.watch.look(lambda: trials)
        scene.clock.now += 1.0
    assert 0.5 * reads <= 0.21 * 6 * 3600
    assert {stall.entry.number for stall in stalled} == {*range(150)}, "only looks are forgiven"


def test_each_commit_of_any_replicate_is_progress(tmp_path):
    config = Bench(tmp_path, spec({"space": {"optimizer.lr": [0.1]}}, replicates=2)).ask()
    assert config is not None
    store, entry = Store(tmp_path / "store"), config.entry
    seen = [read_progress(store, "e1", entry)]
    store.begin("e1/00000/1", 1)
    seen.append(read_progress(store, "e1", entry))
    store.commit("e1/00000/1", 1, 5, {}, [CurvePoint(5, {"train/loss": 1.0}, 0)])
    seen.append(read_progress(store, "e1", entry))
    assert len(set(seen)) == 3
    assert seen[-1] == (Progress(0, 0, -1), Progress(1, 1, 5))


def test_the_process_of_a_stalled_trial_is_killed_and_no_other(monkeypatch):
    killed: list[Any] = []
    monkeypatch.setattr("ray.kill", killed.append)
    live: Any = SimpleNamespace(sweep=None, end_stalled=lambda: {1}, find_stops=frozenset)

    class Running:
        status = Trial.RUNNING

        def __init__(self, number: int, actor: str | None) -> None:
            self.order = make_order(number=number)
            self.temporary_state = type("State", (), {"ray_actor": actor})

    trials: Any = [Running(0, "process 0"), Running(1, "process 1"), Running(1, None)]
    Recorder(live).on_step_end(1, trials)
    assert killed == ["process 1"]


def test_an_experiment_of_which_all_trials_stalled_has_failed(tmp_path: Path):
    bench = Bench(tmp_path, spec({"space": {"optimizer.lr": [0.1]}}))
    assert bench.ask()
    bench.sweep.begin(0, 1)
    bench.sweep.end(0, "stalled", error="no step for 31 s; ...")
    bench.sweep.lose(0, 1, "its process was killed")  # as Tune tells afterwards
    assert bench.ledger.load()[0].state == "stalled"
    assert bench.ends()
    assert bench.sweep.close() == (
        "failed",
        "the only trial stalled: no step for 31 s; ...",
    )


def test_a_stalled_trial_is_no_result_for_a_later_search():
    assert "stalled" in OUTCOMES - RANKED - INSTRUCTIVE


HANGING = """
import json, sys
from eigensweep.protocol.messages import Order
from eigensweep.training.attempt import Attempt

Attempt(Order.from_dict(json.loads(sys.argv[1])), "cpu").advance()
"""


def test_a_process_that_hangs_in_native_code_is_found(tmp_path):
    job = Bench(tmp_path, spec({"space": {"optimizer.lr": [0.1]}})).ask()
    assert job is not None
    store, model = Store(tmp_path / "store"), {"name": "toy_hang", "hidden_size": 4, "hangs": True}
    config = {**job.entry.config, "model": model}
    order = make_order(number=0, config=config, storage=store.place).to_dict()
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", HANGING, json.dumps(order)],
        env=os.environ | {"PYTHONPATH": f"{root}:{root / 'tests/plugins'}"},
    )
    entry = replace(job.entry, state="running", attempt=1)
    watch = StallWatch(
        lambda entry: (store.progress("e1/00000/0"),), 1.0, 0.0, clock=time.monotonic
    )
    try:
        (stall,) = wait_until(lambda: process.poll() is not None or watch.look(lambda: [entry]))
        assert process.poll() is None, "it lives and does not come on"
        assert "limits.stall_seconds" in stall.words
    finally:
        process.kill()
        process.wait()

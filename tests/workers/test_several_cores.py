"""Replicates of a trial that train at once, in threads with one core each."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from orders import make_order
from sweeps import spec

from eigensweep.protocol.messages import Order, Report
from eigensweep.search_spaces.checks.memory import PROCESS, estimate_memory
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.store.marks import pause_mark
from eigensweep.training import attempt as attempts
from eigensweep.training.attempt import Attempt, Replicate
from eigensweep.training.notebook import train
from eigensweep.training.training import Training

SEEDS = 3


def config(**fields: Any) -> TrialConfig:
    parsed = ExperimentSpec.model_validate(spec({"space": {}}, replicates=SEEDS, **fields))
    return parsed.trial(Point("scornn", {}))


def order(folder: Path, cpus: float, attempt: int = 1, **fields: Any) -> Order:
    return make_order(
        attempt=attempt,
        config=config(**fields).model_dump(mode="json"),
        storage=str(folder),
        resources={"CPU": cpus},
        seeds_go_on=False,
    )


def to_the_end(attempt: Attempt) -> list[Report]:
    reports = [attempt.advance()]
    while reports[-1].outcome is None:
        reports.append(attempt.advance())
    return reports


def without_time(reports: list[Report]) -> list[Report]:
    def cut(result: Any) -> Any:
        seeds = tuple(replace(each, seconds=0, step_seconds=0) for each in result.by_replicate)
        return replace(result, seconds=0, step_seconds=0, by_replicate=seeds)

    return [replace(each, result=cut(each.result)) for each in reports]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The numbers of replicates that were seen to train at once."""
    seen: set[int] = set()
    lock, running, train = threading.Lock(), [0], Replicate.train

    def watched(self: Replicate, *args: Any) -> None:
        with lock:
            running[0] += 1
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            seen.add(running[0])
            time.sleep(0.01)
        try:
            train(self, *args)
        finally:
            with lock:
                running[0] -= 1

    monkeypatch.setattr(Replicate, "train", watched)
    return seen


@pytest.mark.parametrize(("cpus", "most"), [(0.5, 1), (1, 1), (2, 2), (2.5, 2), (8, SEEDS)])
def test_as_many_train_at_once_as_there_are_cores(tmp_path, at_once, cpus, most):
    Attempt(order(tmp_path, cpus), "cpu").advance()
    assert max(at_once) == most


@pytest.mark.parametrize("cpus", [2, 8])
@pytest.mark.quick_cases(1)
def test_reports_are_those_of_one_core(tmp_path, cpus):
    one, several = (to_the_end(Attempt(order(tmp_path / str(n), n), "cpu")) for n in (1, cpus))
    assert without_time(several) == without_time(one)
    for seed in range(SEEDS):
        first, second = (Store(tmp_path / str(n)).points(f"e1/00003/{seed}") for n in (1, cpus))
        assert [(p.step, p.metrics) for p in first] == [(p.step, p.metrics) for p in second]


def test_a_notebook_has_the_digits_of_one_core():
    torch.set_num_threads(2)
    try:
        seen: list[tuple[int, int]] = []
        one = train(config(), cpus=1, progress=False)
        two = train(
            config(), cpus=2, progress=False, on_point=lambda seed, p: seen.append((seed, p.step))
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert (two.value, two.test) == (one.value, one.test)
    steps = {seed: [point.step for point in points] for seed, points in two.curves.items()}
    assert {seed: [step for s, step in seen if s == seed] for seed in steps} == steps


def test_behind_one_that_diverged_none_counts(tmp_path, monkeypatch):
    step = Training.take_step

    def diverge(self: Training) -> None:
        if self.seed == 1 and self.step == 7:
            self.see_update(float("nan"), 0.0, 0.0)
        else:
            step(self)

    monkeypatch.setattr(Training, "take_step", diverge)
    one, several = (to_the_end(Attempt(order(tmp_path / str(n), n), "cpu")) for n in (1, 8))
    assert one[-1].outcome == "diverged"
    assert [each.step for each in one[-1].result.by_replicate] == [10, 7, 5]
    drop = [replace(each, committed=()) for each in without_time(several)]
    assert drop == [replace(each, committed=()) for each in without_time(one)]


def test_an_error_stops_the_others_which_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "GLANCE_SECONDS", 0.0)
    trial = Attempt(order(tmp_path, 2, training={"steps": 10**6, "evaluate_every": 10**6}), "cpu")
    step, begun = Training.take_step, threading.Event()

    def fail(self: Training) -> None:
        if self.seed == 1:
            assert begun.wait(60)
            raise OSError("the disk is gone")
        step(self)
        begun.set()

    monkeypatch.setattr(Training, "take_step", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        trial.train(10**6)
    first, second, third = trial.replicates
    assert first.taken_step == first.training.step > 0
    assert (second.taken_step, third.taken_step) == (-1, -1)
    assert Store(tmp_path).progress("e1/00003/0").step == first.training.step


def test_a_pause_commits_all_and_goes_on_bit_for_bit(tmp_path):
    whole = to_the_end(Attempt(order(tmp_path / "whole", 1), "cpu"))
    paused = Attempt(order(tmp_path / "paused", 2), "cpu")
    for replicate in paused.replicates:
        replicate.training.evaluate_every = 1  # it looks after each evaluation
    mark = pause_mark(tmp_path / "paused", "e1")
    mark.touch()
    report = paused.advance()
    assert (report.lost_by, report.outcome) == ("pause", None)
    committed = [each.taken_step for each in paused.replicates]
    assert committed == [
        each.training.step if each.training.step else -1 for each in paused.replicates
    ]
    assert committed[0] == 1
    assert committed[2] == -1, "it has not begun"
    mark.unlink()
    rest = to_the_end(Attempt(order(tmp_path / "paused", 2, attempt=2), "cpu"))
    assert without_time(rest) == without_time(whole)


def test_each_counts_its_part_of_the_time(monkeypatch):
    clock = count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    alone, shared = Training(config(), 0), Training(config(), 0)
    began = next(clock)
    alone.run(5)
    between = next(clock)
    shared.run(5, at_once=2)
    assert between - began == next(clock) - between
    assert shared.seconds == alone.seconds / 2


@pytest.mark.parametrize(("cpus", "steps"), [(1, 1), (2, 2), (8, SEEDS)])
def test_the_guess_has_the_memory_of_all_at_once(cpus, steps):
    large = config(model={"name": "scornn", "hidden_size": 200, "negative_fraction": 0.5}).resolve()
    one, two, here = (estimate_memory(large, cpus=n).host - PROCESS for n in (1, 2, cpus))
    assert here == one + (steps - 1) * (two - one)
    assert two > one
    assert estimate_memory(large, on_gpu=True, cpus=cpus) == estimate_memory(large, on_gpu=True)

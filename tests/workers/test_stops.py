"""Trials that a person stops one by one: what becomes of them, and of the search. No Ray here."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from orders import make_order
from ray.tune.experiment import Trial
from sweeps import Bench, spec

from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.tasks.base import Metric
from eigensweep.workers.driver.summary.so_far import read_so_far
from eigensweep.workers.driver.tune.searcher import Recorder

RATES: dict[str, Any] = {"space": {"optimizer.lr": [0.1, 0.01, 0.001]}}


class Running:
    """A trial of Tune's that has a process."""

    status = Trial.RUNNING

    def __init__(self, number: int) -> None:
        self.order = make_order(number=number)
        self.temporary_state = SimpleNamespace(ray_actor=f"process {number}")


def stop(bench: Bench, trials: list[Any], *numbers: int) -> list[Any]:
    """Let Tune look at its trials while a person wants some to stop; return who was killed."""
    killed: list[Any] = []
    live: Any = SimpleNamespace(
        sweep=bench.sweep, end_stalled=frozenset, find_stops=lambda: frozenset(numbers)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.kill", killed.append)
        Recorder(live).on_step_end(1, trials)
    return killed


def test_a_stopped_trial_keeps_what_it_has_reported(tmp_path: Path):
    so_far = Result(value=0.7, step=7)
    bench = Bench(tmp_path, spec(RATES), read_so_far=lambda entry: so_far)
    for number in range(2):
        assert bench.ask()
        bench.sweep.begin(number, 1)
    bench.sweep.report(0, 5, {"objective": 0.7}, None)
    assert stop(bench, [Running(0), Running(1)], 0) == ["process 0"]
    bench.sweep.lose(0, 1, "its process was killed")  # as Tune tells afterwards
    stopped, other = bench.ledger.load()
    assert (stopped.state, stopped.error) == ("pruned", "stopped on request")
    assert (stopped.result.value, stopped.reports) == (0.7, {5: {"objective": 0.7}})
    assert other.state == "running"
    assert bench.ask().entry.number == 2, "the search goes on"


def test_it_is_killed_again_until_tune_sees_its_end(tmp_path: Path):
    bench = Bench(tmp_path, spec(RATES))
    assert bench.ask()
    bench.sweep.begin(0, 1)
    for _ in range(2):
        assert stop(bench, [Running(0)], 0) == ["process 0"]
    assert [entry.state for entry in bench.ledger.load()] == ["pruned"]


def test_a_waiting_trial_is_never_started(tmp_path: Path):
    bench = Bench(tmp_path, spec(RATES))
    assert bench.ask()
    bench.sweep.begin(0, 1)
    bench.sweep.lose(0, 1, "its node was lost")
    bench.sweep.stop(0)
    assert [bench.ask().entry.number for _ in range(2)] == [1, 2]
    assert bench.ask() is None
    assert bench.ledger.load()[0].state == "pruned"


def test_a_trial_that_rests_does_not_wake(tmp_path: Path):
    bench = Bench(tmp_path, spec({"space": {"optimizer.lr": [0.1]}}), clock=lambda: 0.0)
    assert bench.ask()
    bench.sweep.begin(0, 1)
    bench.sweep.lose(0, 1, "no memory", by="memory")
    bench.sweep.stop(0)
    assert bench.ends()
    assert bench.sweep.is_over
    assert bench.sweep.close() == ("completed", None)


def test_a_trial_on_its_way_is_stopped_when_it_has_a_process(tmp_path: Path):
    bench = Bench(tmp_path, spec(RATES))
    assert bench.ask()
    bench.sweep.stop(0)
    assert bench.ledger.load()[0].state == "waiting"
    bench.sweep.begin(0, 1)
    assert stop(bench, [Running(0)], 0) == ["process 0"]


def test_a_trial_with_a_result_trains_its_further_seeds(tmp_path: Path):
    bench = Bench(tmp_path, spec(RATES, racing={"most": 3}))
    seeds = (ReplicateResult(seed=0, value=0.5),)
    bench.run(lambda params: Result(value=0.5, step=20, by_replicate=seeds), most=3)
    job = bench.ask()
    assert job is not None
    number = job.entry.number
    bench.sweep.begin(number, job.attempt)
    assert stop(bench, [Running(number)], number) == []
    assert bench.ledger.load()[number].state == "running"


def test_a_population_goes_on_without_its_stopped_member(tmp_path: Path):
    pbt = {"name": "pbt", "rung_every": 5, "margin": None, "quantile": 0.4}
    bench = Bench(tmp_path, spec(RATES, scheduler=pbt))
    for number in range(3):
        assert bench.ask()
        bench.sweep.begin(number, 1)
        bench.sweep.report(number, 5, {"objective": 0.1 * number}, None)
    for number in range(2):
        bench.sweep.arrive(number, 1)
    bench.sweep.stop(1)
    assert stop(bench, [Running(2)], 2) == ["process 2"]
    assert [entry.state for entry in bench.ledger.load()] == ["waiting", "pruned", "pruned"]
    assert bench.ask().entry.number == 0


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("tpe", {}),
        ("cmaes", {}),
        ("nsga2", {"objective": {"against": ["parameters"]}}),
        ("random", {"scheduler": {"name": "asha", "rung_every": 5}}),
    ],
)
def test_every_sampler_draws_on_after_a_stop(tmp_path: Path, method: str, fields: Any):
    space = {"optimizer.lr": {"low": 1e-4, "high": 0.1, "log": True}}
    space["model.hidden_size"] = {"low": 4, "high": 12}
    search = {"method": method, "trials": 14, "space": space}
    bench = Bench(tmp_path, spec(search, **fields))
    for _ in range(3):
        bench.run(lambda params: params["optimizer.lr"], most=3)
        job = bench.ask()
        assert job is not None
        bench.sweep.begin(job.entry.number, 1)
        bench.sweep.report(job.entry.number, 5, {"objective": 0.2}, None)
        bench.sweep.stop(job.entry.number)
        bench.start()
    bench.run(lambda params: params["optimizer.lr"])
    states = [entry.state for entry in bench.ledger.load() if entry.state != "invalid"]
    assert states.count("pruned") == 3
    assert states.count("completed") >= 10


class TestSoFar:
    """What the curves in the store say of a trial that was cut off."""

    METRIC = Metric("cross_entropy", "nats", "lower")

    def commit(self, store: Store, seed: int, *points: tuple[int, dict[str, float]]) -> None:
        key = f"e1/00000/{seed}"
        store.begin(key, 1)
        curve = [CurvePoint(step, metrics, 0) for step, metrics in points]
        store.commit(key, 1, curve[-1].step, {}, curve)

    def read(self, folder: Path, **fields: Any) -> Result | None:
        bench = Bench(folder / "bench", spec(RATES, **fields))
        job = bench.ask()
        assert job is not None
        return read_so_far(Store(folder / "store"), "e1", job.entry, self.METRIC)

    def test_the_best_evaluation_of_each_seed_counts(self, tmp_path: Path):
        loss = "valid/cross_entropy"
        store = Store(tmp_path / "store")
        first = [(0, {loss: 0.1}), (5, {loss: 0.4}), (10, {loss: 0.6}), (12, {"train/loss": 9.0})]
        self.commit(store, 0, *first)
        self.commit(store, 1, (5, {loss: 0.2, "valid/accuracy": 0.5}))
        found = self.read(tmp_path, replicates=3)
        assert found is not None
        assert found.value == pytest.approx(0.3)
        assert [(each.seed, each.best_step, each.step) for each in found.by_replicate] == [
            (0, 5, 12),
            (1, 5, 5),
        ]
        assert found.by_replicate[1].valid == {"cross_entropy": 0.2, "accuracy": 0.5}

    def test_before_the_first_evaluation_nothing_is_known(self, tmp_path: Path):
        self.commit(Store(tmp_path / "store"), 0, (0, {"valid/cross_entropy": 0.1}))
        assert self.read(tmp_path) is None

    def test_a_limit_keeps_the_values_of_what_it_cuts_off(self, tmp_path: Path):
        so_far = Result(value=0.7, step=7)
        bench = Bench(tmp_path, spec(RATES), read_so_far=lambda entry: so_far)
        bench.run(most=1)
        job = bench.ask()
        assert job is not None
        bench.sweep.begin(1, 1)
        assert bench.ask() is not None
        bench.sweep.end_early("its 60 s are over")
        cut_off, waiting = bench.ledger.load()[1:]
        assert (cut_off.state, cut_off.result.value, cut_off.result.step) == ("cancelled", 0.7, 7)
        assert (waiting.state, waiting.result) == ("cancelled", None)

    @pytest.mark.parametrize("outcome", ["cancelled", "pruned"])
    def test_what_was_cut_off_twice_has_its_newest_value(self, tmp_path: Path, outcome: str):
        values = iter([Result(value=0.7, step=7), Result(value=0.5, step=9), None])
        bench = Bench(tmp_path, spec(RATES), read_so_far=lambda entry: next(values))
        for value in (0.7, 0.5, 0.5):
            if value == 0.7:
                assert bench.ask() is not None
            else:
                bench.ledger.reopen(0, bench.ledger.load()[0].config, "the rest of its training")
                bench.start()
                assert bench.ask() is not None
            bench.sweep.begin(0, bench.sweep.entries[0].attempt + 1)
            bench.sweep.end(0, outcome if value == 0.5 else "cancelled")
            entry = bench.ledger.load()[0]
            assert entry.result.value == value
        assert entry.state == outcome

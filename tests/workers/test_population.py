"""Population-based training: what is decided, once and for all, and what goes on from what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from orders import make_order
from sweeps import Bench, spec

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import DriverOptions, Order, Report, Takeover
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.parameters import Choice, Integer, Real
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError, StoreAwayError
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.experiment import ExperimentDriver, take_over
from eigensweep.workers.driver.search.population import change, choose_sources

RATES = [0.001, 0.002, 0.004, 0.008]
PBT = {"name": "pbt", "rung_every": 5, "margin": None, "quantile": 0.25}


def choose(*values: float | None, most: int = 1, seed: int = 0, **how: Any) -> dict[int, int]:
    how = {"better": "lower", "good_enough": None, **how}
    return choose_sources(dict(enumerate(values)), most, rng=Random(seed), **how)


class TestWhoIsReplaced:
    def test_the_worst_take_over_from_the_best(self):
        assert choose(0.4, 0.1, 0.3, 0.2) == {0: 1}
        assert choose(0.4, 0.1, 0.3, 0.2, better="higher") == {1: 0}

    def test_each_takes_one_of_the_best_with_equal_probability(self):
        values = [0.1 * number for number in range(10)]
        drawn = [choose(*values, most=3, seed=seed) for seed in range(300)]
        assert all(list(each) == [7, 8, 9] for each in drawn)
        counts = [sum(each[7] == source for each in drawn) for source in range(3)]
        assert sum(counts) == 300
        assert min(counts) > 70

    def test_all_that_diverged_are_replaced_and_count_as_the_worst(self):
        assert choose(None, 0.1, None, 0.2) == {0: 1, 2: 1}
        assert set(choose(None, 0.1, 0.3, 0.2, 0.4, 0.5, most=2)) == {0, 5}

    def test_where_all_diverged_there_is_nothing_to_take_over(self):
        assert choose(None, None) == {}

    def test_nobody_is_both_copied_and_replaced(self):
        for values in ((0.1, 0.2), (0.1, 0.2, 0.3), (None, 0.1, 0.2), (0.1, 0.1, 0.1, 0.1)):
            chosen = choose(*values, most=len(values) // 2)
            assert chosen
            assert not set(chosen) & set(chosen.values())

    def test_noise_about_the_baseline_replaces_only_the_diverged(self):
        assert choose(0.99, 1.01, 0.98, good_enough=0.9) == {}
        assert choose(0.99, None, 0.98, good_enough=0.9) == {1: 2}
        assert choose(0.99, 1.01, 0.8, good_enough=0.9) == {1: 2}
        assert choose(0.6, 0.5, 0.95, good_enough=0.9, better="higher") == {1: 2}


class TestWhatChanges:
    def move(
        self, value: float, axis: Any, perturb: float = 0.2, resample: float = 0.0
    ) -> set[Any]:
        how = {"perturb": perturb, "resample": resample}
        drawn = [change({"x": value}, {"x": axis}, **how, rng=Random(seed)) for seed in range(40)]
        return {params["x"] for params in drawn}

    def test_a_value_is_multiplied_and_stays_in_its_range(self):
        assert self.move(0.01, Real(low=0.001, high=0.1, log=True)) == {0.01 * 0.8, 0.01 * 1.2}
        assert self.move(0.09, Real(low=0.001, high=0.1), perturb=0.5) == {0.045, 0.1}

    def test_of_a_list_the_next_smaller_or_larger_is_taken(self):
        assert self.move(4, Choice(values=(8, 1, 4, 2))) == {2, 8}
        assert self.move(1, Choice(values=(8, 1, 4, 2))) == {1, 2}

    def test_in_steps_the_nearest_other_value_is_taken(self):
        assert self.move(0.5, Real(low=0.1, high=0.9, step=0.1)) == {0.4, 0.6}
        assert self.move(0.1, Real(low=0.1, high=0.9, step=0.1)) == {0.1, 0.2}
        assert self.move(50, Integer(low=1, high=100)) == {40, 60}
        assert self.move(2, Integer(low=1, high=100)) == {1, 3}

    def test_a_value_that_is_drawn_anew_may_be_any(self):
        drawn = self.move(0.01, Real(low=0.001, high=1.0, log=True), resample=1.0)
        assert len(drawn) == 40
        assert min(drawn) < 0.004
        assert max(drawn) > 0.25


def fail_with(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def population(
    folder: Path, scheduler: dict[str, Any] = PBT, rates: list[float] = RATES, **how: Any
) -> Bench:
    search = {"space": {"optimizer.lr": rates}}
    return Bench(folder, spec(search, scheduler=scheduler), **how)


class Stage:
    """Plays what trials' processes report, with a loss that is the learning rate."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def order(self) -> Order | None:
        return self.bench.next_order()

    def play(self, order: Order, diverges: bool = False) -> None:
        """Train to the next rung, and end there as Tune does."""
        sweep, number = self.bench.sweep, order.number
        sweep.begin(number, order.attempt)
        rung = next(rung for rung in order.rungs if rung > order.reported)
        loss = order.config["optimizer"]["lr"]
        if diverges and sweep.waits_for_others(number):
            sweep.arrive(number, order.attempt, Result(outcome="diverged", step=rung - 1))
            return
        metrics = {"objective": loss, "valid/cross_entropy": loss}
        sweep.report(number, rung, metrics, None)
        if sweep.waits_for_others(number):
            sweep.arrive(number, order.attempt)
        else:
            result = Result(outcome="completed", value=loss, step=rung)
            sweep.end(number, "diverged" if diverges else "completed", result)

    def round(self, trials: int = 4) -> list[Order]:
        """Play so many trials to the next rung, one after another, and return their orders."""
        played = []
        while len(played) < trials and (order := self.order()) is not None:
            self.play(order)
            played.append(order)
        return played

    def lineages(self) -> dict[int, list[Takeover]]:
        return {entry.number: list(entry.lineage) for entry in self.bench.ledger.load()}


class TestRounds:
    def test_nobody_goes_beyond_a_rung_before_the_last_has_come(self, tmp_path):
        stage = Stage(population(tmp_path))
        orders = [stage.order() for _ in range(4)]
        for order in orders[:3]:
            stage.play(order)
            assert stage.order() is None
            assert not stage.bench.search.is_finished()
        stage.play(orders[3])
        after = [stage.order() for _ in range(4)]
        assert {order.reported for order in after} == {5}
        assert stage.order() is None

    def test_the_worst_goes_on_from_the_best_with_another_value(self, tmp_path):
        stage = Stage(population(tmp_path))
        stage.round()
        orders = {order.number: order for order in stage.round()}
        (taken,) = stage.lineages()[3]
        assert (taken.step, taken.source) == (5, 0)
        assert taken.params["optimizer.lr"] in RATES
        assert orders[3].config["optimizer"]["lr"] == taken.params["optimizer.lr"]
        assert orders[3].takeover == taken
        assert orders[3].shown == taken.params
        assert taken.source_hash == stage.bench.sweep.entries[0].config_hash
        assert stage.lineages()[0] == stage.lineages()[1] == stage.lineages()[2] == []
        assert orders[0].takeover is None

    def test_it_ends_when_all_have_spent_their_budget(self, tmp_path):
        stage = Stage(population(tmp_path))
        rounds = [[order.reported for order in stage.round()] for _ in range(4)]
        assert rounds == [[0] * 4, [5] * 4, [10] * 4, [15] * 4]
        assert stage.order() is None
        assert stage.bench.sweep.is_over
        entries = stage.bench.ledger.load()
        assert [entry.state for entry in entries] == ["completed"] * 4
        assert all(list(entry.reports) == [5, 10, 15, 20] for entry in entries)
        assert stage.bench.ledger.read("round") == 15

    def test_nobody_is_replaced_before_min_steps(self, tmp_path):
        stage = Stage(population(tmp_path, {**PBT, "min_steps": 12}))
        assert stage.bench.sweep._round.end == 15

    def test_a_trial_that_diverged_goes_on_from_another_one(self, tmp_path):
        stage = Stage(population(tmp_path))
        for _ in range(4):
            order = stage.order()
            stage.play(order, diverges=order.number == 1)
        orders = {order.number: order for order in stage.round()}
        assert orders[1].takeover.source == 0
        assert orders[1].reported == 5
        assert 3 not in {n for n, lineage in stage.lineages().items() if lineage}
        assert stage.bench.ledger.load()[1].state == "waiting"

    def test_where_all_diverged_that_is_their_end(self, tmp_path):
        stage = Stage(population(tmp_path))
        for _ in range(4):
            stage.play(stage.order(), diverges=True)
        assert stage.order() is None
        assert stage.bench.sweep.is_over
        assert {entry.state for entry in stage.bench.ledger.load()} == {"diverged"}

    def test_a_failed_trial_stays_failed_and_the_others_go_on(self, tmp_path):
        stage = Stage(population(tmp_path))
        orders = [stage.order() for _ in range(4)]
        for order in orders[:3]:
            stage.play(order)
        stage.bench.sweep.begin(3, 1)
        stage.bench.sweep.end(3, "failed", error="a bug")
        assert [order.number for order in stage.round(3)] == [0, 1, 2]
        assert stage.lineages()[2][0].source == 0
        assert stage.bench.ledger.load()[3].state == "failed"

    def test_cancelling_ends_those_that_wait(self, tmp_path):
        stage = Stage(population(tmp_path))
        stage.play(stage.order())
        stage.bench.sweep.cancel("enough")
        assert {entry.state for entry in stage.bench.ledger.load()} == {"cancelled"}
        assert stage.bench.sweep.is_over

    def test_a_result_of_one_configuration_is_never_taken_over(self, tmp_path):
        known = population(tmp_path / "first", {"name": "none"})
        known.run()
        stage = Stage(population(tmp_path / "second"))
        for entry in known.ledger.load():
            found = known.ledger.find_finished(entry.config_hash, 0, 1, 20)
            stage.bench.ledger.know(entry.config_hash, found)
        assert [order.reported for order in stage.round()] == [0] * 4


class TestNewDrivers:
    @pytest.mark.parametrize("killed_after", range(1, 9))
    @pytest.mark.quick_cases(2)
    def test_a_driver_that_starts_anew_decides_the_same(self, tmp_path, killed_after):
        undisturbed = Stage(population(tmp_path / "one"))
        for _ in range(4):
            undisturbed.round()
        stage, played = Stage(population(tmp_path / "two")), 0
        while (order := stage.order()) is not None:
            stage.play(order)
            played += 1
            if played == killed_after:
                stage.order()  # handed out, or decided, and lost
                stage.bench.start()
        assert stage.lineages() == undisturbed.lineages()
        told, expected = (each.bench.ledger.load() for each in (stage, undisturbed))
        assert [(e.state, e.reports) for e in told] == [(e.state, e.reports) for e in expected]

    def test_a_decision_is_made_again_only_if_the_ledger_missed_it(self, tmp_path):
        stage = Stage(population(tmp_path))
        stage.round()
        lost = stage.bench.sweep._round.decide(list(stage.bench.sweep.entries.values()))
        stage.bench.start()
        first = stage.order()
        assert stage.lineages()[3] == [lost[3]]
        stage.bench.start()
        assert stage.order() == first
        rounds = [h for h in stage.bench.ledger.read("history") if h[0] == "round"]
        assert rounds == [["round", 5, [3]]]

    def test_nobody_starts_before_every_copy_is_made(self, tmp_path):
        stage, done = Stage(population(tmp_path)), []
        stage.round()

        def refuse(entry: Any) -> None:
            raise StorageError("the disk is full")

        stage.bench.sweep._take_over = refuse
        assert stage.order() is None
        assert not stage.bench.search.is_finished()
        stage.bench.sweep._take_over = lambda entry: done.append(entry.number)
        assert stage.order() is not None
        assert done == [3]


class Killed(BaseException):
    """The driver's process is gone."""


class Troupe(Stage):
    """Plays a population that truly trains, and dies before or after a given act of its driver.

    An act is a write to the ledger, or a copy in the store.
    """

    ACTS = ("begin", "report", "interrupt", "finish", "end_round")

    def __init__(self, folder: Path) -> None:
        self.acts, self.dies_at, self.dies_before = 0, -1, False
        self.store = Store(folder)
        bench = population(folder, rates=[0.1, 0.01, 0.0001, 1e-6], take_over=self.take_over)
        super().__init__(bench)
        for name in self.ACTS:
            setattr(bench.ledger, name, partial(self.act, getattr(bench.ledger, name)))

    def take_over(self, entry: TrialEntry) -> None:
        self.act(take_over, self.store, "e1", entry)

    def act(self, do: Callable[..., Any], *arguments: Any) -> Any:
        self.acts += 1
        if self.acts == self.dies_at and self.dies_before:
            raise Killed
        answer = do(*arguments)
        if self.acts == self.dies_at:
            raise Killed
        return answer

    def play(self, order: Order, diverges: bool = False) -> None:
        sweep, number = self.bench.sweep, order.number
        sweep.begin(number, order.attempt)
        report = Attempt(order, "cpu").advance()
        sweep.report(number, report.step, report.metrics, None)
        if report.outcome is None:
            sweep.arrive(number, order.attempt)
        else:
            sweep.end(number, report.outcome, report.result)

    def perform(self) -> Any:
        """Train to the end, with another driver after each death; return all that came of it."""
        while not self.bench.sweep.is_over:
            try:
                while (order := self.order()) is not None:
                    self.play(order)
            except Killed:
                self.bench.start()
        entries = self.bench.ledger.load()
        curves = [self.store.points(f"e1/{number:05d}/0") for number in range(4)]
        return (
            [(e.state, e.reports, e.lineage, e.result.value, e.result.test) for e in entries],
            [[(point.step, point.metrics) for point in curve] for curve in curves],
        )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Troupe:
    """A population that has trained to its end, and its `result`."""
    troupe = Troupe(tmp_path_factory.mktemp("undisturbed"))
    troupe.result = troupe.perform()
    return troupe


def test_a_driver_that_starts_while_the_store_is_away_waits(tmp_path, monkeypatch):
    stage = Stage(population(tmp_path))
    stage.round()
    stage.order()  # the round is decided, and trial 3 is to be replaced
    options = DriverOptions(storage=str(tmp_path))
    driver = ExperimentDriver("e1", stage.bench.spec, stage.bench.ledger, options)
    monkeypatch.setattr(Store, "take_over", fail_with(StoreAwayError("cannot reach the store")))
    monkeypatch.setattr("eigensweep.workers.driver.nodes.capacity.count_slots", lambda share: 4)
    waiting: list[bool] = []

    def begin_tune() -> None:
        waiting.append(driver.sweep.is_over)
        driver.sweep.cancel("seen")

    monkeypatch.setattr(driver, "_run_in_turns", begin_tune)
    driver._train()
    assert waiting == [False]


class TestKills:
    def test_there_is_something_to_disturb(self, undisturbed):
        ended, curves = undisturbed.result
        assert [state for state, *_ in ended] == ["completed"] * 4
        assert sum(len(lineage) for _, _, lineage, *_ in ended) == 3
        assert [[step for step, _ in curve] for curve in curves] == [[0, 5, 10, 15, 20]] * 4
        assert undisturbed.acts == 4 * 4 * 3 + 3 * 2

    @pytest.mark.parametrize("before", [True, False])
    @pytest.mark.parametrize("act", [11, 12, 13, 14, 15])
    @pytest.mark.quick_cases(2)
    def test_whatever_was_done_last_in_a_round_all_ends_the_same(
        self, undisturbed, tmp_path, act, before
    ):
        self.check(undisturbed, tmp_path, act, before)

    @pytest.mark.slow
    @pytest.mark.parametrize("act", range(1, 55))
    def test_whatever_the_driver_did_last_everything_ends_the_same(
        self, undisturbed, tmp_path, act
    ):
        self.check(undisturbed, tmp_path, act, before=False)

    def check(self, undisturbed: Troupe, folder: Path, act: int, before: bool) -> None:
        troupe = Troupe(folder)
        troupe.dies_at, troupe.dies_before = act, before
        assert troupe.perform() == undisturbed.result


class Trainer:
    """Trains trials of a population in this process, each attempt from the store."""

    def __init__(self, folder: Path, **fields: Any) -> None:
        fields = {"training": {"steps": 20, "evaluate_every": 5, "log_every": 5}, **fields}
        content = spec({"space": {"optimizer.lr": RATES}}, scheduler=PBT, **fields)
        self.spec, self.folder = ExperimentSpec.model_validate(content), folder
        self.store = Store(folder)

    def order(self, number: int, lr: float, attempt: int = 1, **fields: Any) -> Order:
        config = self.spec.trial(Point("scornn", {"optimizer.lr": lr}))
        return make_order(
            number=number,
            attempt=attempt,
            config=config.model_dump(mode="json"),
            storage=str(self.folder),
            shown={"optimizer.lr": lr},
            **fields,
        )

    def hash(self, lr: float) -> str:
        return self.spec.trial(Point("scornn", {"optimizer.lr": lr})).content_hash()

    def run(self, order: Order, rungs: int = 1) -> list[Report]:
        attempt = Attempt(order, "cpu")
        return [attempt.advance() for _ in range(rungs)]

    def curve(self, number: int) -> list[tuple[int, dict[str, float]]]:
        return [(p.step, p.metrics) for p in self.store.points(f"e1/{number:05d}/0")]


def taken_by(trainer: Trainer, number: int, source: int, lr: float, source_lr: float) -> Takeover:
    """Let a trial that is at step 10 take over from another, and return what became of it."""
    taken = Takeover(10, source, {"optimizer.lr": lr}, trainer.hash(source_lr))
    key, source_key = (f"e1/{each:05d}/0" for each in (number, source))
    trainer.store.take_over(source_key, key, 2, 10)
    return taken


class TestWhatGoesOn:
    def test_stopping_at_each_rung_a_trial_trains_as_without(self, tmp_path):
        whole, parts = Trainer(tmp_path / "whole"), Trainer(tmp_path / "parts")
        told = whole.run(whole.order(0, 0.01), rungs=4)
        again = [
            parts.run(parts.order(0, 0.01, attempt=n + 1, reported=5 * n))[0] for n in range(4)
        ]
        assert [(r.step, r.metrics, r.outcome) for r in told] == [
            (r.step, r.metrics, r.outcome) for r in again
        ]
        assert whole.curve(0) == parts.curve(0)

    def test_with_unchanged_values_the_copy_trains_as_its_source(self, tmp_path):
        trainer = Trainer(tmp_path)
        trainer.run(trainer.order(0, 0.01), rungs=2)
        trainer.run(trainer.order(1, 0.0001), rungs=2)
        taken = taken_by(trainer, number=1, source=0, lr=0.01, source_lr=0.01)
        source = trainer.run(trainer.order(0, 0.01, attempt=2, reported=10), rungs=2)
        copy = trainer.run(trainer.order(1, 0.01, attempt=2, reported=10, takeover=taken), rungs=2)
        assert [r.metrics for r in copy] == [r.metrics for r in source]
        assert copy[-1].result.value == source[-1].result.value
        states = [trainer.store.newest(f"e1/{n:05d}/0").state for n in (0, 1)]
        assert states[0]["step"] == states[1]["step"] == 20
        for name, weights in states[0]["model"].items():
            assert torch.equal(weights, states[1]["model"][name])
        best = [trainer.store.kept.best(f"e1/{n:05d}/0")["weights"] for n in (0, 1)]
        assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])

    def test_with_another_rate_it_goes_on_and_learns_otherwise(self, tmp_path):
        trainer = Trainer(tmp_path)
        trainer.run(trainer.order(0, 0.01), rungs=2)
        trainer.run(trainer.order(1, 0.0001), rungs=2)
        before = trainer.curve(1)
        taken = taken_by(trainer, number=1, source=0, lr=0.02, source_lr=0.01)
        key = "e1/00001/0"
        snapshot, source = (trainer.store.newest(f"e1/{n:05d}/0") for n in (1, 0))
        assert snapshot.step == source.step == 10
        assert torch.equal(snapshot.state["model"]["A"], source.state["model"]["A"])
        trainer.run(trainer.order(1, 0.02, attempt=2, reported=10, takeover=taken))
        after = trainer.store.newest(key).state
        assert (after["step"], after["hash"]) == (15, trainer.hash(0.02))
        assert not torch.equal(after["model"]["A"], snapshot.state["model"]["A"])
        curve = trainer.curve(1)
        assert curve[: len(before)] == before
        rates = {step: m["param/optimizer.lr"] for step, m in curve if "param/optimizer.lr" in m}
        assert rates == {0: 0.0001, 5: 0.0001, 10: 0.0001, 15: 0.02}

    def test_its_best_is_that_of_the_weights_it_has_now(self, tmp_path):
        trainer = Trainer(tmp_path)
        good, bad = (trainer.run(trainer.order(n, lr), rungs=2) for n, lr in ((0, 0.01), (1, 1e-5)))
        taken = taken_by(trainer, number=0, source=1, lr=1e-5, source_lr=1e-5)
        order = trainer.order(0, 1e-5, attempt=2, reported=10, takeover=taken)
        (report,) = trainer.run(order)
        assert report.metrics["objective"] > good[-1].metrics["objective"]
        (source,) = trainer.run(trainer.order(1, 1e-5, attempt=2, reported=10))
        assert report.metrics == source.metrics
        assert bad[-1].metrics["objective"] >= source.metrics["objective"]

    def test_one_that_dies_after_a_takeover_goes_on_from_its_own(self, tmp_path):
        trainer = Trainer(tmp_path)
        trainer.run(trainer.order(0, 0.01), rungs=2)
        trainer.run(trainer.order(1, 0.0001), rungs=2)
        taken = taken_by(trainer, number=1, source=0, lr=0.02, source_lr=0.01)
        fields = {"reported": 10, "takeover": taken}
        trainer.run(trainer.order(1, 0.02, attempt=2, **fields))
        taken_by(trainer, number=1, source=0, lr=0.02, source_lr=0.01)  # a new driver tries again
        attempt = Attempt(trainer.order(1, 0.02, attempt=3, **fields), "cpu")
        assert attempt.reached_step == 15

    def test_all_replicates_are_copied(self, tmp_path):
        trainer = Trainer(tmp_path, replicates=2)
        for number, lr in ((0, 0.01), (1, 0.0001)):
            trainer.run(trainer.order(number, lr), rungs=2)
        taken = Takeover(10, 0, {"optimizer.lr": 0.02}, trainer.hash(0.01))
        order = trainer.order(1, 0.02, attempt=2, reported=10, takeover=taken)
        entry = TrialEntry(1, "scornn", {}, order.config, "", "waiting", 1, lineage=(taken,))
        take_over(trainer.store, "e1", entry)
        for seed in (0, 1):
            states = [trainer.store.newest(f"e1/{n:05d}/{seed}").state for n in (0, 1)]
            assert torch.equal(states[0]["model"]["A"], states[1]["model"]["A"])
        trainer.run(order)

    def test_a_checkpoint_of_another_configuration_is_refused(self, tmp_path):
        trainer = Trainer(tmp_path)
        trainer.run(trainer.order(0, 0.01))
        taken = Takeover(10, 1, {"optimizer.lr": 0.02}, trainer.hash(0.03))
        with pytest.raises(ValueError, match="the checkpoint is of configuration"):
            Attempt(trainer.order(0, 0.02, attempt=2, takeover=taken), "cpu")

"""A race gives more seeds to the leaders: what it decides, and how a driver carries it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from file_ledger import FileLedger
from scipy import stats
from sweeps import SCORNN, Bench, spec

from eigensweep.protocol.ledger import Finished
from eigensweep.protocol.messages import Order
from eigensweep.results.racing import Race, Round, find_race, run_race
from eigensweep.results.seeds import cut_seeds, summarise
from eigensweep.results.trial_result import ReplicateResult, Result, Source
from eigensweep.search_spaces.planning import find_seeds
from eigensweep.search_spaces.spec import ExperimentSpec

ROUNDS = [*range(3, 11)]


def race_through(means: list[float], chance: np.random.Generator, leaders: int) -> Race | None:
    """Play a race to its end: each value is a mean, plus what its seed does to all, plus noise."""
    trainings = np.array(means)[:, None] + chance.normal(0, 1, (len(means), ROUNDS[-1]))
    trainings += chance.normal(0, 1, ROUNDS[-1])
    seeds = [ROUNDS[0]] * len(means)
    while True:
        values = {
            number: dict(enumerate(trainings[number, :count].tolist()))
            for number, count in enumerate(seeds)
        }
        error = 0.05 / (len(means) - 1)
        race = run_race(values, ROUNDS, first_seed=0, leaders=leaders, better="lower", error=error)
        if race.wanted is None:
            return race
        for number in race.lacking:
            assert seeds[number] < race.wanted
            seeds[number] = race.wanted


def count_trainings(race: Race, trials: int) -> int:
    widest = {n: r.seeds for r in race.rounds for n in (*r.racers, *r.worse, *r.left_out)}
    assert len(widest) == trials
    following = dict(pairwise(ROUNDS))
    for played in race.rounds[:-1]:
        widest |= {n: max(widest[n], following[played.seeds]) for n in played.racers}
    return sum(widest.values())


class TestSimulation:
    """The promises hold where the truth is known: configurations with normal noise."""

    @pytest.mark.parametrize("means", [[0.0] * 6, [0.0, 0.0, 4.0, 4.0], [0.0, 0.5, 1.0, 2.0, 4.0]])
    def test_the_best_configuration_leaves_a_twentieth_of_races(self, means):
        chance, races = np.random.default_rng(1), 80
        left = 0
        for _ in range(races):
            race = race_through(means, chance, leaders=len(means))
            left += any(0 in played.worse for played in race.rounds)
        assert left <= 0.05 * races

    def test_it_finds_the_best_with_far_fewer_trainings_than_all(self):
        means, chance = [0.0, 1.5, *[8.0] * 8], np.random.default_rng(2)
        found, trainings = 0, 0
        for _ in range(20):
            race = race_through(means, chance, leaders=len(means))
            found += race.rounds[-1].leader == 0
            trainings += count_trainings(race, len(means))
        assert found >= 19
        assert trainings < 0.65 * 20 * len(means) * ROUNDS[-1]


class Played(NamedTuple):
    """A trial as a race sees it."""

    number: int
    arm: str
    result: Result
    state: str = "completed"
    error: str | None = None


def race_arms(draw: Callable[[int, int], float], arms: int, most: int, **racing: Any) -> Race:
    """Play a race between arms to its end: each has a configuration, and `draw` its values."""
    models = [{"name": "gru", "hidden_size": size} for size in range(2, 2 + arms)]
    content = spec(
        {"space": {}},
        arms=[{"name": f"a{n}", "model": model} for n, model in enumerate(models)],
        replicates=2,
        racing={"between": "arms", "most": most, **racing},
    )
    read = ExperimentSpec.model_validate(content)
    values = [[draw(arm, seed) for seed in range(most)] for arm in range(arms)]
    seeds = [2] * arms
    while True:
        trials = [Played(n, f"a{n}", result_of(values[n][: seeds[n]])) for n in range(arms)]
        race = find_race(read, trials)
        assert race is not None
        if race.is_over:
            return race
        for number in race.lacking:
            seeds[number] = race.wanted or 0


def result_of(values: Sequence[float], seconds: float = 1.0) -> Result:
    return summarise(
        [
            ReplicateResult(seed=seed, value=v, step=9, outcome="completed", seconds=seconds)
            for seed, v in enumerate(values)
        ]
    )


class TestArms:
    """A race between arms: one may look after every seed, and errs as seldom as was asked for."""

    RACES, MOST = 150, 20

    @pytest.mark.parametrize("alpha", [0.05, 0.2])
    @pytest.mark.quick_cases(1)
    def test_equal_arms_are_called_different_as_seldom_as_asked(self, alpha):
        chance, wrong = np.random.default_rng(5), 0
        for _ in range(self.RACES):
            race = race_arms(lambda *_: chance.normal(), 3, self.MOST, alpha=alpha)
            wrong += any(each.worse for each in race.rounds)
        assert stats.binom.sf(wrong - 1, self.RACES, alpha) > 1e-3, wrong / self.RACES

    def test_arms_that_just_differ_are_seldom_called_equivalent(self):
        chance, wrong = np.random.default_rng(6), 0
        for _ in range(self.RACES):
            race = race_arms(lambda arm, _: arm + chance.normal(), 2, self.MOST, smallest=1.0)
            wrong += any(each.equivalent for each in race.rounds)
        assert stats.binom.sf(wrong - 1, self.RACES, 0.05) > 1e-3, wrong / self.RACES

    def test_a_difference_of_twice_its_spread_needs_few_seeds(self):
        chance, seeds = np.random.default_rng(7), []
        for _ in range(30):
            race = race_arms(lambda arm, _: 2.8 * arm + chance.normal(), 2, self.MOST)
            last = race.rounds[-1]
            assert (last.leader, last.worse) == (0, (1,))
            seeds.append(last.seeds)
        assert np.median(seeds) == pytest.approx(find_seeds(2.8 / 2**0.5), abs=3)

    def test_arms_that_differ_by_too_little_get_no_more_seeds(self):
        chance = np.random.default_rng(8)
        race = race_arms(lambda arm, _: 0.01 * chance.normal(), 2, self.MOST, smallest=1.0)
        last = race.rounds[-1]
        assert (len(last.equivalent), last.rivals) == (1, ())
        assert last.seeds < self.MOST
        assert race.words.endswith(" differs from the leader by no more than 1")

    def test_the_first_seeds_choose_the_configuration_only(self):
        content = spec(
            {"space": {}},
            arms=[
                {"model": {"name": name, "hidden_size": 4}, "space": {"optimizer.lr": [0.1, 0.01]}}
                for name in ("gru", "lstm")
            ],
            replicates=3,
            racing={"between": "arms", "most": 9},
        )
        lucky, good, bad = [0.0, 0.1, 0.2], [0.5, 0.5, 0.5], [9.0, 9.1, 9.2]
        known = [("gru", lucky), ("gru", bad), ("lstm", good), ("lstm", bad)]
        trials = [Played(n, arm, result_of(values)) for n, (arm, values) in enumerate(known)]
        race = find_race(ExperimentSpec.model_validate(content), trials)
        assert (race.lacking, race.wanted, race.counted) == ((0, 2), 4, 3)
        (played,) = race.rounds
        assert (played.racers, played.worse) == ((0, 2), ())

    def test_spent_core_hours_end_a_race_when_its_round_is_whole(self):
        content = spec(
            {"space": {"optimizer.lr": [0.1, 0.01]}},
            replicates=2,
            racing={"most": 9, "core_hours": 2.0},
            resources={"cpus": 2},
        )
        read = ExperimentSpec.model_validate(content)

        def race(*seeds: int, seconds: float) -> Race:
            values = [[1.0, 1.2, 1.1, 1.3], [1.2, 1.0, 1.3, 1.1]]
            trials = [
                Played(n, "scornn", result_of(values[n][:count], seconds))
                for n, count in enumerate(seeds)
            ]
            found = find_race(read, trials)
            assert found is not None
            return found

        assert race(2, 2, seconds=899.0).lacking == (0, 1)
        begun, whole = race(3, 2, seconds=900.0), race(3, 3, seconds=900.0)
        assert begun.lacking == (1,)
        assert (whole.is_over, whole.is_spent) == (True, True)
        assert whole.words.endswith("; its core-hours are spent")

    def test_seeds_that_were_taken_over_spend_no_core_hours(self):
        content = spec(
            {"space": {"optimizer.lr": [0.1, 0.01]}},
            replicates=2,
            racing={"most": 9, "core_hours": 1.0},
        )
        read = ExperimentSpec.model_validate(content)

        def race(reused_seconds: float) -> Race:
            trials = []
            for number, values in enumerate([[1.0, 1.2, 1.1], [1.2, 1.0, 1.3]]):
                *taken, own = result_of(values, 1000.0).by_replicate
                seeds = [replace(seed, reused_seconds=reused_seconds) for seed in taken]
                trials.append(Played(number, "scornn", summarise([*seeds, own])))
            found = find_race(read, trials)
            assert found is not None
            return found

        assert race(1000.0).lacking == (0, 1)
        assert race(400.0).is_spent


class TestDecision:
    def race(self, *trials: list[float], stuck: Any = (), **options: Any) -> Race:
        values = {number: dict(enumerate(known, 5)) for number, known in enumerate(trials)}
        known = {"first_seed": 5, "leaders": 8, "better": "lower", **options}
        return run_race(values, [3, 4, 5], stuck=stuck, **known)

    def test_who_is_worse_leaves_and_others_train_the_next_seeds(self):
        race = self.race([0.1, 0.2, 0.3], [0.12, 0.19, 0.32], [5.1, 5.2, 5.3001])
        (played,) = race.rounds
        assert (played.leader, played.rivals, played.worse) == (0, (1,), (2,))
        assert (race.wanted, race.lacking) == (4, (0, 1))
        assert race.words == (
            "trial 0 leads with 3 seeds and is not distinguishable from trial 1; trials 0 and 1 "
            "train up to 4 seeds"
        )

    def test_it_is_over_when_the_leader_is_alone(self):
        race = self.race([0.1, 0.2, 0.3], [5.1, 5.2, 5.3001])
        assert race.is_over
        assert race.words == "trial 0 is better than every other one that was compared with it"

    def test_where_higher_is_better_the_highest_mean_leads(self):
        race = self.race([0.1, 0.2, 0.3], [5.1, 5.2, 5.3001], better="higher")
        assert race.rounds[0].leader == 1

    def test_it_ends_with_the_most_seeds_and_says_what_is_open(self):
        race = self.race([1, 2, 3, 4, 5.0], [2, 1, 3, 5, 4.5])
        assert race.is_over
        assert [played.seeds for played in race.rounds] == [3, 4, 5]
        assert race.words == "trial 0 leads with 5 seeds and is not distinguishable from trial 1"

    def test_no_more_than_the_leaders_train_on(self):
        race = self.race(*[[1.0, 2.0, 3.0 + 0.1 * place] for place in range(4)], leaders=2)
        (played,) = race.rounds
        assert (played.racers, played.left_out) == ((0, 1), (2, 3))
        assert race.lacking == (0, 1)
        assert race.words.endswith("; 2 more could not be told apart and got no more seeds")

    def test_a_broken_off_round_goes_on_with_who_lacks_its_seeds(self):
        race = self.race([1, 2, 3, 4.0], [2, 1, 3.1])
        assert (race.wanted, race.lacking) == (4, (1,))

    def test_a_trial_that_cannot_train_more_is_compared_only(self):
        race = self.race([1, 2, 3.0], [2, 1, 3.1], [1.5, 1.4, 3.3], stuck=[1])
        assert (race.wanted, race.lacking) == (4, (0, 2))
        assert self.race([1, 2, 3.0], [2, 1, 3.1], stuck=[1]).is_over

    def test_it_is_said_of_a_leader_that_it_could_train_no_more(self):
        race = Race((Round(3, 0, (1, 2), (), (), ()), Round(4, 1, (), (2,), (), ())))
        assert race.words == (
            "trial 1 leads with 4 seeds; trial 0 could train no more seeds, and nothing was decided"
        )

    def test_what_was_equivalent_to_an_earlier_leader_is_said_so(self):
        rounds = (Round(3, 0, (1,), (), (2,), ()), Round(4, 1, (0,), (), (), ()))
        words = "; trial 2 differs from trial 0, which led then, by no more than 0.5"
        assert Race(rounds, within=0.5).words.endswith(words)

    def test_seeds_that_do_not_count_are_named(self):
        end = "; the first 3 seeds chose the configurations and do not count"
        rounds = (Round(3, 0, (1,), (), (), ()), Round(9, 1, (), (0,), (), ()))
        assert Race(rounds, counted=3).words.endswith(end)
        assert not Race(rounds[:1], counted=3).words.endswith(end)

    def test_without_two_trials_there_is_nothing_to_decide(self):
        assert self.race([1, 2, 3.0], [1, 2.0]).words.startswith("no two configurations finished")


VALUES = {1e-1: 0.5, 1e-2: 0.1, 1e-3: 0.105, 1e-4: 0.9}
"""Learning rate to its mean: the second and the third cannot be told apart soon."""
RACE: dict[str, Any] = {"replicates": 3, "racing": {"most": 6, "seeds": 2}, "seed": 7}


def race_spec(**fields: Any) -> dict[str, Any]:
    search = fields.pop("search", {"space": {"optimizer.lr": list(VALUES)}})
    return spec(search, **{**RACE, **fields})


def value_of(rate: float, seed: int) -> float:
    """Return what a seed gives: the mean, what the seed does to all, and what to this rate."""
    return VALUES[rate] + 0.01 * (seed % 3) + 0.01 * ((seed * (1 + list(VALUES).index(rate))) % 5)


def train(order: Order, value: Callable[[float, int], float] = value_of) -> Result:
    """Return what an order's process reports at its end."""
    config, rate = order.config, order.config["optimizer"]["lr"]
    seeds = range(config["seed"], config["seed"] + config["replicates"])
    return summarise(
        [
            ReplicateResult(seed=s, value=value(rate, s), step=20, outcome="completed", seconds=1.0)
            for s in seeds
        ]
    )


def play(bench: Bench, most: int = 100) -> Iterator[Order]:
    """Run trials one by one, and yield what each was ordered to do."""
    while most and (order := bench.next_order()) is not None:
        bench.sweep.begin(order.number, order.attempt)
        bench.sweep.report(order.number, 20, {"objective": 1.0}, None)
        bench.sweep.end(order.number, "completed", train(order))
        most -= 1
        yield order


class TestSweep:
    def seeds(self, bench: Bench) -> dict[int, list[int]]:
        return {
            entry.number: [each.seed for each in entry.result.by_replicate]
            for entry in bench.ledger.load()
        }

    def test_the_leaders_train_further_seeds_and_none_twice(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        trained = [
            (order.number, seed)
            for order in play(bench)
            for seed in range(
                order.config["seed"], order.config["seed"] + order.config["replicates"]
            )
        ]
        assert len(trained) == len(set(trained)) == 4 * 3 + 2 * 3
        assert bench.sweep.is_over
        some, all_ = [7, 8, 9], [7, 8, 9, 10, 11, 12]
        assert self.seeds(bench) == {0: some, 1: all_, 2: all_, 3: some}
        assert [e.state for e in bench.ledger.load()] == ["completed"] * 4
        assert [e.config["replicates"] for e in bench.ledger.load()] == [3, 6, 6, 3]
        wide = bench.ledger.load()[1].result
        assert wide.value == pytest.approx(np.mean([value_of(1e-2, s) for s in all_]))
        assert (wide.replicates, wide.seconds) == (6, 6.0)
        assert bench.ledger.load()[1].reports == {20: {"objective": 1.0}}

    @pytest.mark.parametrize("at", range(17, 34))
    @pytest.mark.quick_cases(3)
    def test_wherever_its_driver_dies_the_race_ends_the_same(self, tmp_path, at, monkeypatch):
        bench, writes = Bench(tmp_path / "whole", race_spec()), 0
        list(play(bench))
        whole = [(e.state, e.result, e.config) for e in bench.ledger.load()]

        change = FileLedger._change

        def die(ledger: FileLedger) -> Any:
            nonlocal writes
            writes += 1
            if writes == at:
                raise KeyboardInterrupt
            return change(ledger)

        monkeypatch.setattr(FileLedger, "_change", die)
        broken = Bench(tmp_path / "broken", race_spec())
        with pytest.raises(KeyboardInterrupt):
            list(play(broken))
        monkeypatch.undo()
        broken.start()
        list(play(broken))
        assert broken.sweep.is_over
        assert [(e.state, e.result, e.config) for e in broken.ledger.load()] == whole

    @pytest.mark.parametrize("at", range(9, 30, 4))
    def test_wherever_its_driver_dies_a_race_of_arms_ends_the_same(self, tmp_path, at, monkeypatch):
        content = race_spec(
            search={"space": {}},
            arms=[
                {"name": f"a{rate}", "model": SCORNN, "optimizer": {"lr": rate}}
                for rate in (1e-2, 1e-3)
            ],
            replicates=2,
            racing={"between": "arms", "most": 6, "smallest": 1e-5},
        )
        bench, writes = Bench(tmp_path / "whole", content), 0
        list(play(bench))
        whole = [(e.state, e.result, e.config) for e in bench.ledger.load()]
        assert [e.config["replicates"] for e in bench.ledger.load()] == [6, 6]
        change = FileLedger._change

        def die(ledger: FileLedger) -> Any:
            nonlocal writes
            writes += 1
            if writes == at:
                raise KeyboardInterrupt
            return change(ledger)

        monkeypatch.setattr(FileLedger, "_change", die)
        broken = Bench(tmp_path / "broken", content)
        with pytest.raises(KeyboardInterrupt):
            list(play(broken))
        monkeypatch.undo()
        broken.start()
        list(play(broken))
        assert [(e.state, e.result, e.config) for e in broken.ledger.load()] == whole

    def test_a_paused_race_goes_on_where_it_was(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        order = self.reach_race(bench)
        bench.sweep.hold()
        assert bench.next_order() is None
        assert not bench.sweep.is_over
        bench.sweep.take_back()
        bench.start()
        list(play(bench))
        assert bench.sweep.is_over
        assert len(self.seeds(bench)[order.number]) == 6

    def test_a_race_that_ended_at_its_most_seeds_goes_on_with_more(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        list(play(bench))
        assert bench.sweep.is_over
        further = bench.spec.racing.model_copy(update={"most": 8})
        bench.spec = bench.spec.model_copy(update={"racing": further})
        bench.start()
        orders = list(play(bench))
        assert {(o.config["seed"], o.config["replicates"]) for o in orders} == {(13, 1), (14, 1)}
        assert {len(seeds) for seeds in self.seeds(bench).values()} == {3, 8}

    def test_a_search_that_was_cancelled_ends_without_a_race(self, tmp_path):
        bench = Bench(tmp_path, race_spec())

        def end(order: Order) -> None:
            bench.sweep.begin(order.number, order.attempt)
            if (order.number, order.attempt) == (1, 1):
                bench.sweep.end(order.number, "failed", None, "KeyError: 'x'")
            else:
                alike = train(order, lambda rate, seed: value_of(0.01, seed + order.number))
                bench.sweep.end(order.number, "completed", alike)

        for _ in range(3):
            end(bench.next_order())
        bench.sweep.cancel("cancelled on request")
        bench.ledger.take_up(closed=True, failed=True)
        bench.start()
        order = bench.next_order()
        end(order)
        assert (order.number, bench.next_order(), bench.sweep.is_over) == (1, None, True)
        assert {len(seeds) for seeds in self.seeds(bench).values()} == {3}

    def test_a_search_does_not_go_on_once_the_race_has_begun(self, tmp_path):
        content = race_spec(search={"method": "random", "trials": 4, "space": RANGE})
        bench = Bench(tmp_path, content)

        def noisy(rate: float, seed: int) -> float:
            return rate + 0.1 * ((seed * int(1e6 * rate)) % 7)

        while (order := bench.next_order()) is not None:
            bench.sweep.begin(order.number, order.attempt)
            if bench.sweep.entries[order.number].earlier is not None:
                break
            bench.sweep.end(order.number, "completed", train(order, noisy))
        bench.spec = bench.spec.model_copy(
            update={"search": bench.spec.search.model_copy(update={"trials": 9})}
        )
        bench.start()
        while (order := bench.next_order()) is not None:
            bench.sweep.begin(order.number, order.attempt)
            bench.sweep.end(order.number, "completed", train(order, noisy))
        assert len(bench.ledger.load()) == 4

    def reach_race(self, bench: Bench) -> Order:
        """Return the first order of the race, begun."""
        assert len(list(play(bench, most=4))) == 4
        order = bench.next_order()
        assert order is not None
        bench.sweep.begin(order.number, order.attempt)
        return order

    def test_what_is_cancelled_in_a_race_keeps_its_result(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        self.reach_race(bench)
        bench.sweep.cancel("cancelled on request")
        assert self.seeds(bench) == {number: [7, 8, 9] for number in range(4)}
        assert {(e.state, e.error, e.config["replicates"]) for e in bench.ledger.load()} == {
            ("completed", None, 3)
        }
        assert bench.sweep.is_over
        assert bench.sweep.close() == ("cancelled", "cancelled on request")

    def test_what_fails_in_a_race_keeps_its_result_and_leaves(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        order = self.reach_race(bench)
        bench.sweep.end(order.number, "failed", error="Traceback\nLookupError: seed 10")
        list(play(bench))
        bench.start()
        assert bench.ends()
        entry = bench.ledger.load()[order.number]
        assert (entry.state, entry.result.replicates) == ("completed", 3)
        assert "LookupError: seed 10" in entry.error
        assert entry.error.endswith("for seeds 10 to 11 of the race. The result is that of before.")

    def test_what_diverges_in_a_race_has_diverged_and_is_out(self, tmp_path):
        bench = Bench(tmp_path, race_spec())
        order = self.reach_race(bench)
        assert order.number == 1
        seed = ReplicateResult(seed=10, value=None, step=3, outcome="diverged")
        bench.sweep.end(1, "diverged", summarise([seed]))
        list(play(bench))
        entry = bench.ledger.load()[1]
        assert (entry.state, entry.result.outcome) == ("diverged", "diverged")
        assert bench.sweep.entries.best().number == 2

    def test_who_stayed_longer_is_ahead_of_lucky_means(self, tmp_path):
        bench = Bench(tmp_path, race_spec())

        def unlucky(rate: float, seed: int) -> float:
            return value_of(rate, seed) + (seed >= 10)

        while (order := bench.next_order()) is not None:
            bench.sweep.begin(order.number, order.attempt)
            bench.sweep.end(order.number, "completed", train(order, unlucky))
        best, narrow = bench.sweep.entries.best(), bench.ledger.load()[0]
        assert best.number in (1, 2)
        assert narrow.result.value < best.result.value

    def test_a_result_of_more_seeds_elsewhere_serves_the_race(self, tmp_path):
        first = Bench(tmp_path / "first", race_spec())
        list(play(first))
        second = Bench(tmp_path / "second", race_spec())
        for entry in first.ledger.load():
            found = Finished(Source("e0", entry.number), entry.result)
            second.ledger.know(entry.config_hash, found)
        assert list(play(second)) == []
        assert [e.state for e in second.ledger.load()] == ["reused"] * 4
        assert self.seeds(second) == self.seeds(first)

    def test_a_trial_taken_over_brings_its_checkpoints_to_the_race(self, tmp_path):
        first = Bench(tmp_path / "first", race_spec(racing=None))
        list(play(first))
        second = Bench(tmp_path / "second", race_spec())
        for entry in first.ledger.load():
            found = Finished(Source("e0", entry.number), entry.result)
            second.ledger.know(entry.config_hash, found)
        order = second.next_order()
        assert (order.number, order.donor) == (1, Source("e0", 1))
        assert (order.config["seed"], order.config["replicates"]) == (7, 5)

    def test_the_log_says_why_trials_train_on(self, tmp_path, caplog):
        with caplog.at_level(logging.INFO):
            list(play(Bench(tmp_path, race_spec())))
        assert "not distinguishable from trial 2; trials 1 and 2 train up to 5 seeds" in caplog.text


RANGE = {"optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True}}


def test_a_result_is_cut_to_its_first_seeds_and_no_further():
    seeds = [ReplicateResult(seed=s, value=s, step=9, outcome="completed") for s in (1, 2, 3)]
    wide = Result.from_dict(summarise(seeds).to_dict())
    assert cut_seeds(wide, 2).value == 1.5
    assert [each.seed for each in cut_seeds(wide, 2).by_replicate] == [1, 2]
    with pytest.raises(ValueError, match="has 3 seeds, and 4 are wanted"):
        cut_seeds(wide, 4)


def test_an_experiment_without_a_race_gives_nobody_more_seeds(tmp_path: Path):
    bench = Bench(tmp_path, race_spec(racing=None))
    assert len(list(play(bench))) == 4
    assert bench.sweep.is_over

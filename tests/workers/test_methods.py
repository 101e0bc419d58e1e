"""Search methods beside grid, random and TPE: what they find, and that a new driver goes on."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from sweeps import SCORNN, Bench, spec

from eigensweep.protocol.ledger import NOTHING, TrialEntry
from eigensweep.results.trial_result import ParameterCount, Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.search.samplers import FEWEST_EARLIER, GENERATION
from eigensweep.workers.driver.search.study import Draw, Study
from eigensweep.workers.driver.sweep import Job

TWO = {
    "optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "optimizer.alpha": {"low": 0.0, "high": 0.99},
}
GRID = {
    "optimizer.lr": {"low": 0.01, "high": 0.1, "step": 0.01},
    "optimizer.alpha": {"low": 0.0, "high": 0.9, "step": 0.1},
}
SMALL = {"optimizer.lr": [0.1, 0.2, 0.3, 0.4, 0.5], "optimizer.alpha": [0.1, 0.2, 0.3, 0.4]}
ARMS = [{"model": SCORNN}, {"model": {"name": "lstm", "hidden_size": 8}}]
MIXED = {
    **TWO,
    "optimizer.name": ["adam", "rmsprop"],
    "optimizer.momentum": {"low": 0.0, "high": 0.9, "when": {"optimizer.name": ["rmsprop"]}},
}
SLOW = pytest.mark.slow
LEARNING = {"gp": 20, "cmaes": 60, "nsga2": 40}
"""Methods, and trials after which they are close; a fit of GP takes a second."""


def bench(folder: Path, method: str, space: dict[str, Any], trials: int, **fields: Any) -> Bench:
    search = {"method": method, "space": space, "trials": trials, "seed": 1}
    search |= {
        name: fields.pop(name) for name in ("warm_start", "first", "constraints") if name in fields
    }
    return Bench(folder, spec(search, **fields))


def loss(params: dict[str, Any]) -> float:
    """Return a bowl whose least value, 0, is near one corner; a tenth of it diverges."""
    place = (math.log10(params["optimizer.lr"]) + 5) / 4
    if place > 0.9:
        return math.inf
    return (place - 0.75) ** 2 + (params["optimizer.alpha"] - 0.2) ** 2


def mean(values: list[float]) -> float:
    finite = [min(value, 1.0) for value in values]
    return sum(finite) / len(finite)


class TestSequences:
    @pytest.mark.parametrize("method", ["grid", "qmc"])
    def test_a_part_of_a_space_is_spread_over_arms_and_values(self, tmp_path, method):
        limits = {"trials": 40}
        b = bench(tmp_path, method, GRID, 40, arms=ARMS, limits=limits)
        b.run()
        entries = b.ledger.load()
        assert Counter(e.arm for e in entries) == {"scornn": 20, "lstm": 20}
        for arm in ("scornn", "lstm"):
            for path in GRID:
                times = Counter(e.params[path] for e in entries if e.arm == arm)
                assert set(times.values()) <= {1, 2, 3}
                assert len(times) == 10
        assert b.ends()

    @pytest.mark.parametrize(
        ("method", "space", "trials"),
        [
            ("qmc", MIXED, 20),
            ("random", MIXED, 20),
            ("random", SMALL, 19),
            ("grid", SMALL, 19),
            ("qmc", {"model.negative_fraction": [0, 0.5]}, 9),
        ],
    )
    def test_a_driver_that_starts_anew_walks_the_same_points(self, tmp_path, method, space, trials):
        (tmp_path / "other").mkdir()
        limits = {"trials": trials}
        through = bench(tmp_path / "other", method, space, trials, limits=limits).run()
        b = bench(tmp_path, method, space, trials, limits=limits)
        killed = []
        while points := b.run(most=6):
            killed += points
            b.start()
        assert killed == through
        assert len({tuple(point.items()) for point in through}) == len(through)
        assert len(through) == min(trials, b.spec.space().count() or trials)

    def test_the_seed_chooses_the_sample(self, tmp_path):
        samples = []
        for seed in (1, 2):
            (tmp_path / str(seed)).mkdir()
            search = {"space": GRID, "seed": seed}
            samples.append(Bench(tmp_path / str(seed), spec(search, limits={"trials": 10})).run())
        assert samples[0] != samples[1]


class TestConstraints:
    @pytest.mark.parametrize("method", ["grid", "random", "qmc", "tpe", "nsga2"])
    def test_points_that_break_them_are_no_trials(self, tmp_path, method):
        rules = ["optimizer.alpha < optimizer.lr"]  # 10 of 20 points keep it
        b = bench(tmp_path, method, SMALL, 20, constraints=rules)
        points = b.run(most=4)
        b.start()
        points += b.run()
        assert all(point["optimizer.alpha"] < point["optimizer.lr"] for point in points)
        assert len({tuple(point.items()) for point in points}) == len(points) == 10
        assert [entry.state for entry in b.ledger.load()] == ["completed"] * 10
        assert b.ends()

    @pytest.mark.parametrize("method", ["random", "tpe", "cmaes"])
    def test_a_search_has_all_the_trials_that_it_asks_for(self, tmp_path, method):
        b = bench(tmp_path, method, TWO, 15, constraints=["optimizer.alpha < 100 * optimizer.lr"])
        assert len(b.run(loss)) == 15


class TestPointsThatComeFirst:
    FIRST = (
        {"optimizer.lr": 0.4, "optimizer.alpha": 0.3},
        {"optimizer.lr": 0.2, "optimizer.alpha": 0.1},
    )

    @pytest.mark.parametrize("method", ["grid", "random", "qmc", "tpe", "nsga2"])
    def test_all_are_tried_once_also_where_a_new_driver_goes_on(self, tmp_path, method):
        first = [{"params": params} for params in self.FIRST]
        (tmp_path / "other").mkdir()
        through = bench(tmp_path / "other", method, SMALL, 20, first=first).run()
        b = bench(tmp_path, method, SMALL, 20, first=first)
        killed = []
        while points := b.run(most=1 if not killed else 7):
            killed += points
            b.start()
        for points in (through, killed):
            assert points[:2] == list(self.FIRST)
            assert len({tuple(point.items()) for point in points}) == len(points) == 20
        if method in ("grid", "random", "qmc"):
            assert killed == through

    @pytest.mark.parametrize("method", ["tpe", pytest.param("gp", marks=SLOW), "cmaes", "nsga2"])
    def test_the_sampler_learns_from_them(self, tmp_path, method):
        first = [{"params": {"optimizer.lr": 0.01, "optimizer.alpha": 0.2}}]
        b = bench(tmp_path, method, TWO, 8, first=first)
        assert b.run(loss, most=1) == [first[0]["params"]]
        assert [(t.params, t.value) for t in b.study.trials()] == [
            (first[0]["params"], pytest.approx(loss(first[0]["params"])))
        ]
        assert len(b.run(loss)) == 7

    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_an_extension_tries_those_that_were_added_next(self, tmp_path, method):
        b = bench(tmp_path, method, SMALL, 6, first=[{"params": self.FIRST[0]}])
        tried = b.run()
        added = next(p.params for p in b.spec.space() if p.params not in tried)
        known = tried[-1]  # drawn before it was named
        first = [{"params": params} for params in (self.FIRST[0], known, added)]
        search = {"method": method, "space": SMALL, "trials": 8, "seed": 1, "first": first}
        b.spec = ExperimentSpec.model_validate(spec(search))
        b.ledger.take_up()
        b.start()
        later = b.run()
        assert later[0] == added
        assert len(later) == 2


class TestRangesInSteps:
    @pytest.mark.parametrize("method", ["random", "tpe"])
    def test_each_value_is_tried_once_and_conditions_on_it_hold(self, tmp_path, method):
        space = {
            "optimizer.alpha": {"low": 0.1, "high": 0.9, "step": 0.1},
            "optimizer.momentum": {"choices": [0.1, 0.5], "when": {"optimizer.alpha": [0.3, 0.7]}},
        }
        b = bench(tmp_path, method, space, 30)
        points = b.run(most=5)
        b.start()
        points += b.run()
        assert b.ends()
        known = [point.params for point in b.spec.space()]
        assert sorted(points, key=str) == sorted(known, key=str)
        assert len(points) == 11


class TestSamplersThatLearn:
    @pytest.mark.parametrize("method", [pytest.param("gp", marks=SLOW), "cmaes", "nsga2"])
    @pytest.mark.quick_cases(1)
    def test_it_comes_close_also_where_a_new_driver_goes_on(self, tmp_path, method):
        b = bench(tmp_path, method, TWO, LEARNING[method])
        values = [loss(params) for params in b.run(loss, most=LEARNING[method] - 8)]
        b.start()
        later = [loss(params) for params in b.run(loss)]
        assert mean(later) < mean(values[:8]) / 2
        assert sum(map(math.isinf, later)) < 3

    @pytest.mark.quick_cases(2)
    @pytest.mark.parametrize("method", ["tpe", *LEARNING])
    def test_a_new_driver_proposes_what_one_that_remembers_would(self, tmp_path, method):
        b = bench(tmp_path, method, TWO, 40)
        b.run(loss, most=12 if method == "gp" else 30)
        remembers = b.study
        b.start()
        for part, new in zip(remembers._parts, b.study._parts, strict=True):
            part.turns = new.turns
            part.begin()  # each driver has a random stream of its own
        assert [b.study.draw().point for _ in range(3)] == [
            remembers.draw().point for _ in range(3)
        ]

    def test_what_cmaes_noted_is_forgotten_where_more_is_to_do(self, tmp_path):
        b = bench(tmp_path, "cmaes", TWO, 30)
        b.run(loss)
        assert any("cma:optimizer:0" in e.sampler_state for e in b.ledger.load())
        b.ledger.take_up()
        b.start()
        assert not any(t.system_attrs for t in b.study.trials())

    @pytest.mark.parametrize("trials", [3, 4, 6, 9, 10])
    def test_cmaes_goes_on_from_few_trials_without_its_notes(self, tmp_path, trials):
        b = bench(tmp_path, "cmaes", TWO, trials + 6)
        earlier = b.run(loss, most=trials)
        b.ledger.take_up()
        b.start()
        assert not any(t.system_attrs for t in b.study.trials())
        later = b.run(loss)
        assert len(later) == 6
        if trials >= FEWEST_EARLIER:
            assert median(map(loss, later)) < median(map(loss, earlier))

    @pytest.mark.parametrize("earlier", [0, 1, 3, 4, 7, 10])
    def test_cmaes_draws_what_every_trial_has_from_the_first_on(self, tmp_path, earlier):
        """Optuna's own takes a condition that all trials met so far for one that always holds."""
        first = [
            {
                "params": {
                    "optimizer.lr": 10.0**-n,
                    "optimizer.alpha": 0.5,
                    "optimizer.name": "rmsprop",
                    "optimizer.momentum": 0.1 * n,
                }
            }
            for n in range(1, 5)
        ]
        b = bench(tmp_path, "cmaes", MIXED, 30, first=first)
        b.run(loss, most=earlier)
        b.start()
        b.run(loss)
        entries = b.ledger.load()
        assert {e.params["optimizer.name"] for e in entries} == {"adam", "rmsprop"}
        drawn = [e for e in entries if e.number >= 5]
        assert len(drawn) == 25
        assert all("cma:generation" in e.sampler_state for e in drawn)

    def test_cmaes_learns_from_trials_with_a_longer_budget(self, tmp_path):
        """They are open when a driver takes them up, and what was noted with them is gone."""
        b = bench(tmp_path, "cmaes", TWO, 20)
        earlier = [loss(params) for params in b.run(loss)]
        ended = [replace(entry, sampler_state=NOTHING) for entry in b.ledger.load()]
        study = Study(b.spec)
        study.take_up(entry.reopened(entry.config, "a longer budget") for entry in ended)
        for entry in ended:
            study.tell(entry)
        later = [loss(dict(study.draw().point.params)) for _ in range(8)]
        assert median(later) < median(earlier) / 2

    @pytest.mark.parametrize(
        ("first", "at_once", "fail"), [(5, 5, 0), (5, 8, 0), (6, 1, 3), (16, 24, 0)]
    )
    def test_nsga2_breeds_from_whole_generations(self, tmp_path, first, at_once, fail):
        """Points that came first are of no draw, and may be open in several generations."""
        points = [
            {"params": {"optimizer.lr": 1e-3 * (n + 1), "optimizer.alpha": 0.5}}
            for n in range(first)
        ]
        b = bench(tmp_path, "nsga2", TWO, 3 * first, first=points)
        jobs: list[Job] = []
        while True:
            while len(jobs) < at_once and (job := b.ask()) is not None:
                b.sweep.begin(job.entry.number, job.attempt)
                jobs.append(job)
            if not jobs:
                break
            entry = jobs.pop(0).entry
            value = Result(value=loss(entry.params), step=20)
            failed = {"outcome": "failed", "error": "a bug"} if entry.number < fail else {}
            b.sweep.end(entry.number, **(failed or {"outcome": "completed", "result": value}))
        assert len(b.ledger.load()) == 3 * first
        (part,) = b.study._parts
        trials, size = b.study.trials(), b.spec.population
        for generation in range(1, max(t.system_attrs[GENERATION] for t in trials) + 1):
            parents = part._study.sampler.get_parent_population(part._study, generation)
            assert len(parents) in (0, size)

    @pytest.mark.parametrize("method", LEARNING)
    def test_arms_take_turns_and_each_draws_its_own_parameters(self, tmp_path, method):
        b = bench(tmp_path, method, MIXED, 16, arms=ARMS)
        b.run(loss, most=9)
        b.start()
        b.run(loss)
        entries = b.ledger.load()
        assert Counter(e.arm for e in entries) == {"scornn": 8, "lstm": 8}
        for entry in entries:
            is_rmsprop = entry.params["optimizer.name"] == "rmsprop"
            assert ("optimizer.momentum" in entry.params) == is_rmsprop

    @pytest.mark.parametrize("method", LEARNING)
    def test_a_finite_space_ends(self, tmp_path, method):
        space = {
            "optimizer.lr": {"low": 0.01, "high": 0.03, "step": 0.01},
            "optimizer.alpha": {"low": 0.0, "high": 0.5, "step": 0.25},
        }
        b = bench(tmp_path, method, space, 20)
        assert len(b.run(loss)) == 9
        assert b.ends()


SIZED = {**TWO, "model.hidden_size": {"low": 4, "high": 60}}


class TestSeveralObjectives:
    def value(self, params: dict[str, Any]) -> float | Result:
        found = loss(params)
        if math.isinf(found):
            return found
        size = params["model.hidden_size"]
        counted = ParameterCount(free=size, stored=size)
        return Result(value=found + 1 / size, step=20, parameters=counted, seconds=2.0)

    @pytest.mark.parametrize(
        ("method", "trials"), [("tpe", 40), pytest.param("gp", 20, marks=SLOW), ("nsga2", 40)]
    )
    @pytest.mark.quick_cases(1)
    def test_the_whole_front_comes_closer_also_with_a_new_driver(self, tmp_path, method, trials):
        goals = {"objective": {"against": ["parameters"]}}
        b = bench(tmp_path, method, SIZED, trials, **goals)
        points = b.run(self.value, most=trials - 10)
        b.start()
        later = b.run(self.value)
        assert mean(list(map(loss, later))) < mean(list(map(loss, points[:10]))) / 1.5
        assert len({params["model.hidden_size"] // 15 for params in later}) > 1
        told = b.in_optuna()
        for entry in b.ledger.load():
            known = [entry.result.value, entry.params["model.hidden_size"]]
            worst = [math.inf, math.inf]
            assert told[entry.number].values == (worst if entry.state == "diverged" else known)

    def test_seconds_and_other_metrics_are_read_from_the_result(self, tmp_path):
        against = {"against": ["seconds", "accuracy"]}
        b = bench(tmp_path, "tpe", TWO, 1, objective=against)
        b.run(lambda params: Result(value=0.5, seconds=3.0, valid={"accuracy": 0.25}, step=20))
        assert b.in_optuna()[0].values == [0.5, 3.0, 0.25]
        directions = [goal.better for goal in b.spec.goals()]
        assert directions == ["lower", "lower", "higher"]


@pytest.mark.parametrize("method", ["cmaes", "nsga2"])
def test_a_used_up_arm_costs_a_new_driver_no_random_points(tmp_path, monkeypatch, method):
    other = {"model": {"name": "lstm", "hidden_size": 5}, "space": TWO}
    arms = [{"model": SCORNN, "space": {}}, other]
    search = {"method": method, "trials": 24, "space": {}}
    b = Bench(tmp_path, spec(search, arms=arms))
    b.run(lambda params: 0.5 if not params else loss(params), most=20)
    b.start()
    add, draws = b.study.add, []

    def note(entry: TrialEntry, draw: Draw | None = None) -> None:
        draws.append(draw)
        add(entry, draw)

    monkeypatch.setattr(b.study, "add", note)
    b.run(loss)
    assert len(draws) == 4
    assert None not in draws


class TestWarmStart:
    def start(self, folder: Path, method: str, trials: int, **earlier: Any) -> Bench:
        """Return a search that starts from 30 trials of another one, which sought elsewhere."""
        before = Bench(folder, spec({"method": "random", "trials": 30, "space": TWO}, **earlier))
        before.run(loss)
        (folder / "ledger.json").rename(folder / "e0.json")
        search = {"method": method, "space": TWO, "trials": trials, "warm_start": ["e0"]}
        return Bench(folder, spec(search))

    @pytest.mark.parametrize("method", ["tpe", "cmaes", "nsga2"])
    @pytest.mark.quick_cases(1)
    def test_the_first_points_are_as_good_as_earlier_ones_allow(self, tmp_path, method):
        b = self.start(tmp_path, method, 20)
        values = [loss(params) for params in b.run(loss)]
        (tmp_path / "cold").mkdir()
        cold = bench(tmp_path / "cold", method, TWO, 20)
        assert median(values[:10]) < median([loss(p) for p in cold.run(loss, most=10)]) / 1.5

    @pytest.mark.parametrize("method", ["tpe", "gp", "cmaes", "nsga2"])
    def test_the_same_search_again_draws_other_points(self, tmp_path, method):
        """With few trials to learn from, samplers draw at random: from the seed of the search."""
        before = bench(tmp_path, method, TWO, 4)
        points = before.run(loss)
        for number in range(2):
            (tmp_path / "ledger.json").rename(tmp_path / f"e{number}.json")
            again = bench(tmp_path, method, TWO, 4, warm_start=[f"e{number}"])
            points += again.run(loss)
        assert len({tuple(params.values()) for params in points}) == 12

    @pytest.mark.parametrize("method", ["cmaes", "nsga2"])
    def test_the_notes_of_the_earlier_sampler_are_not_its_own(self, tmp_path, method):
        bench(tmp_path, method, TWO, 30).run(loss)
        (tmp_path / "ledger.json").rename(tmp_path / "e0.json")
        space = {**TWO, "optimizer.momentum": {"low": 0.0, "high": 0.9}}
        b = bench(tmp_path, method, space, 20, warm_start=["e0"])
        b.run(loss)
        trials = b.study.trials()
        if method == "cmaes":
            assert all("cma:generation" in t.system_attrs for t in trials[30:])
        else:
            generations = [t.system_attrs[GENERATION] for t in trials[:30]]
            assert generations == [n // b.spec.population for n in range(30)]

    def test_each_trial_is_told_once_whatever_dies(self, tmp_path):
        b = self.start(tmp_path, "tpe", 20)
        b.run(loss, most=3)
        b.start()
        assert self.count_told(b) == 30
        diverged = [e for e in b.ledger.load_earlier(["e0"]) if e[1].state == "diverged"]
        told = [t.state.name for t in b.study.trials()[:30]]
        assert (told.count("PRUNED"), told.count("FAIL")) == (len(diverged), 0)

    def count_told(self, b: Bench) -> int:
        return len(b.study.trials()) - len(b.ledger.load())

    @pytest.mark.parametrize(
        ("earlier", "known"),
        [
            ({"seed": 7, "replicates": 2, "priority": 3}, 30),
            ({"training": {"steps": 10, "evaluate_every": 5}}, 0),
            ({"model": SCORNN | {"hidden_size": 12}}, 0),
            ({"optimizer": {"name": "rmsprop"}}, 0),
            ({"objective": {"metric": "accuracy"}}, 0),
        ],
    )
    def test_only_the_same_training_counts(self, tmp_path, earlier, known):
        assert self.count_told(self.start(tmp_path, "tpe", 3, **earlier)) == known

    @pytest.mark.parametrize(("method", "known"), [("tpe", 12), ("gp", 4), ("nsga2", 4)])
    def test_of_trials_stopped_early_tpe_learns_the_reports(self, tmp_path, method, known):
        before = Bench(tmp_path, spec({"method": "random", "trials": 12, "space": TWO}))
        while (job := before.ask()) is not None:
            number = job.entry.number
            before.sweep.begin(number, job.attempt)
            for step in (5, 10):
                before.sweep.report(number, step, {"objective": number + step}, None)
            how = "pruned" if number % 3 else "completed"
            before.sweep.end(number, how, Result(value=float(number), step=20))
        (tmp_path / "ledger.json").rename(tmp_path / "e0.json")
        b = bench(tmp_path, method, TWO, 3, warm_start=["e0"])
        told = b.study.trials()
        assert len(told) == known
        assert {t.state.name for t in told} == (
            {"PRUNED", "COMPLETE"} if known > 4 else {"COMPLETE"}
        )
        for number, trial in enumerate(told):
            if trial.state.name == "PRUNED":
                assert trial.intermediate_values == {5: number + 5, 10: number + 10}
        assert len(b.run(loss)) == 3

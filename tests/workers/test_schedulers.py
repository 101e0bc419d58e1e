from __future__ import annotations

import math
from collections import defaultdict
from statistics import fmean, median
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from file_ledger import FileLedger
from orders import make_order
from sweeps import spec

from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.checks.brackets import Brackets
from eigensweep.search_spaces.checks.search_words import find_brackets
from eigensweep.search_spaces.sections import SchedulerConfig
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.driver.tune import schedulers
from eigensweep.workers.driver.tune.schedulers import Median, Past, make_scheduler


class Trial:
    """As much of Tune's trial as schedulers look at."""

    status = "PENDING"

    def __init__(self, name: str, reports: list[tuple[int, float]], number: int) -> None:
        self.trial_id = name
        self.order = make_order(number=number, reports=tuple(reports))


def trial(name: str, reports: list[tuple[int, float]] | None = None, number: int = 0) -> Any:
    return Trial(name, reports or [], number)


def build(name: str, past: list[Past], better: str = "lower", baseline: float | None = None) -> Any:
    return make_scheduler(
        SchedulerConfig(name=name, min_steps=10),
        Brackets(10, 90, 3, None if name == "hyperband" else 1),
        better=better,
        baseline=baseline,
        past=past,
    )


CONTROLLER = SimpleNamespace(get_live_trials=lambda: {trial("waiting")})
PAST = [(n, [(10, 0.1 * n), (20, 0.1 * n)]) for n in range(1, 5)]


@pytest.mark.parametrize("name", ["asha", "median"])
class TestWhatEarlierDriversSaw:
    def decide(self, rule: Any, one: Any, step: int, value: float) -> str:
        rule.on_trial_add(CONTROLLER, one)
        return rule.on_trial_result(CONTROLLER, one, {"step": step, "objective": value})

    @pytest.mark.parametrize(("value", "decision"), [(0.05, "CONTINUE"), (0.9, "STOP")])
    def test_a_trial_is_held_against_it(self, name, value, decision):
        assert self.decide(build(name, PAST), trial("new"), 10, value) == decision

    @pytest.mark.parametrize(("value", "decision"), [(0.05, "STOP"), (0.9, "CONTINUE")])
    def test_and_the_other_way_where_higher_is_better(self, name, value, decision):
        assert self.decide(build(name, PAST, "higher"), trial("new"), 10, value) == decision

    def test_without_it_nobody_is_stopped_or_paused_at_first(self, name):
        assert self.decide(build(name, []), trial("new"), 10, 0.9) == "CONTINUE"

    def test_a_trial_that_lost_its_process_is_counted_once(self, name):
        rule = build(name, [])
        lost = trial("lost", number=3)
        for n in range(3):
            self.decide(rule, trial(f"t{n}", number=n), 10, 0.1 * n)
        self.decide(rule, lost, 10, 0.01)
        rule.on_trial_error(CONTROLLER, lost)
        recorded = rule._reached[0, 10] if name == "asha" else rule._reports
        assert sorted(recorded) == [0, 1, 2]
        rule.on_trial_add(CONTROLLER, trial("again", [(10, 0.01)], number=3))
        assert sorted(recorded) == [0, 1, 2, 3]


def test_the_last_report_of_a_stopped_trial_counts_once():
    rule = build("median", PAST)
    stopped, result = trial("stopped"), {"step": 10, "objective": 0.9}
    rule.on_trial_add(CONTROLLER, stopped)
    assert rule.on_trial_result(CONTROLLER, stopped, result) == "STOP"
    rule.on_trial_complete(CONTROLLER, stopped, result)
    assert rule._reports[0] == {10: -0.9}


def test_median_averages_each_report_once(monkeypatch):
    counted = []
    monkeypatch.setattr(schedulers.np, "mean", lambda v, mean=np.mean: counted.append(v) or mean(v))
    rule = build("median", [])
    for number in range(50):
        for step in (10, 20, 30):
            told = {"step": step, "objective": float(number)}
            rule.on_trial_result(CONTROLLER, trial("t", number=number), told)
    assert len(counted) == 50 * 3


@pytest.mark.parametrize("good_enough", [None, 0.3])
@pytest.mark.quick_cases(1)
def test_median_decides_as_its_definition_says(good_enough):
    draw = np.random.default_rng(1)
    rule = Median([], "higher", good_enough, first=10, min_samples=3)
    reports, decided = defaultdict[int, dict[int, float]](dict), []

    def find(number: int, step: int, value: float) -> bool:
        others = [
            [v for at, v in seen.items() if 10 <= at <= step]
            for other, seen in reports.items()
            if other != number and max(seen) >= step
        ]
        means = [fmean(values) for values in others if values]
        good = [
            at for s in reports.values() for at, v in s.items() if v > (good_enough or -math.inf)
        ]
        if step < 10 or len(means) < 3 or min(good) > step:
            return False
        return max([value, *reports[number].values()]) < median(means)

    for _ in range(3000):
        number = int(draw.integers(40))
        if draw.random() < 0.02:
            rule.on_trial_error(CONTROLLER, trial("lost", number=number))
            reports.pop(number, None)
            continue
        step = max(reports[number], default=0) + int(draw.choice([3, 5, 10]))
        value = float(draw.normal(0.01 * number - 0.5))
        told = {"step": step, "objective": value}
        expected = "STOP" if find(number, step, value) else "CONTINUE"
        decided.append(expected)
        reports[number][step] = value
        assert rule.on_trial_result(CONTROLLER, trial("t", number=number), told) == expected
    assert {"STOP", "CONTINUE"} == set(decided)


def test_a_trial_that_goes_on_is_not_judged_twice_at_a_rung():
    rule = build("asha", PAST)
    resumed = trial("resumed", [(10, 0.15)])
    rule.on_trial_add(CONTROLLER, resumed)
    assert rule.on_trial_result(CONTROLLER, resumed, {"step": 20, "objective": 0.9}) == "CONTINUE"
    assert rule.on_trial_result(CONTROLLER, resumed, {"step": 30, "objective": 0.9}) == "CONTINUE"
    best = trial("best", [(10, 0.01), (30, 0.01)], number=5)
    rule.on_trial_add(CONTROLLER, best)
    worse = trial("worse", [(10, 0.05)], number=6)
    rule.on_trial_add(CONTROLLER, worse)
    assert rule.on_trial_result(CONTROLLER, worse, {"step": 30, "objective": 0.95}) == "STOP"


BASELINE = 10 * math.log(8) / 1020
"""Of copying with a delay of 1000."""


def plateau(number: int) -> float:
    """Return the best loss so far of a trial that still guesses: the baseline and its noise."""
    return BASELINE * (1 + 0.002 * math.sin(7 * number))


@pytest.mark.parametrize("name", ["asha", "hyperband", "median"])
class TestTheBaseline:
    def decide_all(self, rule: Any, step: int, values: list[float]) -> list[str]:
        decided = []
        for number, value in enumerate(values):
            one = trial(f"t{number}", number=number)
            rule.on_trial_add(CONTROLLER, one)
            result = {"step": step, "objective": value}
            decided.append(rule.on_trial_result(CONTROLLER, one, result))
        return decided

    def test_on_the_plateau_of_copying_noise_stops_nobody(self, name):
        values = [plateau(number) for number in range(8)]
        assert set(self.decide_all(build(name, [], baseline=BASELINE), 10, values)) == {"CONTINUE"}
        assert "STOP" in self.decide_all(build(name, []), 10, values)

    def test_once_one_has_learned_the_others_are_judged(self, name):
        values = [plateau(number) for number in range(8)]
        values[1] = values[2] = values[3] = BASELINE / 2
        decided = self.decide_all(build(name, [], baseline=BASELINE), 10, values)
        assert "STOP" not in decided[:4]
        assert "STOP" in decided[4:]

    def test_an_earlier_drivers_trial_that_learned_counts(self, name):
        past = [(n, [(10, BASELINE / 2)]) for n in range(20)]
        rule = build(name, past, baseline=BASELINE)
        decided = set()
        for number in range(20, 24):
            late = trial("late", number=number)
            rule.on_trial_add(CONTROLLER, late)
            result = {"step": 10, "objective": BASELINE}
            decided.add(rule.on_trial_result(CONTROLLER, late, result))
        assert "STOP" in decided


def test_where_higher_is_better_the_margin_exceeds_the_baseline():
    rule = build("asha", [], "higher", baseline=0.1)
    assert rule._good_enough == pytest.approx(0.11)


def test_hyperbands_later_brackets_begin_to_stop_later():
    past = [(n, [(10, 0.1), (30, 0.1)]) for n in range(40)]
    by_bracket = {}
    for number in range(40, 60):
        rule = build("hyperband", past)
        one = trial("new", number=number)
        rule.on_trial_add(CONTROLLER, one)
        decided = rule.on_trial_result(CONTROLLER, one, {"step": 10, "objective": 0.9})
        if decided == "CONTINUE":
            decided += rule.on_trial_result(CONTROLLER, one, {"step": 30, "objective": 0.9})
        by_bracket.setdefault(rule._brackets.choose(number), set()).add(decided)
    assert by_bracket == {0: {"STOP"}, 1: {"CONTINUESTOP"}, 2: {"CONTINUECONTINUE"}}


@pytest.mark.parametrize("name", ["asha", "hyperband", "median"])
def test_rungs_follow_from_the_spec_not_from_its_first_trials(tmp_path, name):
    search = {"space": {"training.steps": [100, 900, 300]}}
    content = spec(search, scheduler={"name": name, "margin": None})
    ledger, options = FileLedger(tmp_path / "ledger.json"), DriverOptions(storage=str(tmp_path))
    found = []
    for trials in (1, 3):
        driver = ExperimentDriver("e1", ExperimentSpec.model_validate(content), ledger, options)
        for _ in range(trials):
            assert driver.sweep.next_job() is not None
        rule = driver._scheduler()
        found.append(rule._first if name == "median" else rule._brackets)
    assert found[0] == found[1] == (10 if name == "median" else find_brackets(driver.spec))
    if name == "hyperband":
        assert found[0].begins == [10, 30, 90, 270, 810]

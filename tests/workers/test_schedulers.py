from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from orders import make_order

from eigensweep.workers.driver.schedulers import Past, make_scheduler


class Trial:
    """As much of Tune's trial as schedulers look at."""

    status = "PENDING"

    def __init__(self, name: str, reports: list[tuple[int, float]]) -> None:
        self.trial_id, self.config = name, make_order(reports=tuple(reports)).to_dict()


def trial(name: str, reports: list[tuple[int, float]] | None = None) -> Any:
    return Trial(name, reports or [])


def build(name: str, past: list[Past], better: str = "lower") -> Any:
    return make_scheduler(
        name,
        better=better,
        min_steps=10,
        max_steps=90,
        reduction_factor=3,
        min_samples=3,
        past=past,
    )


CONTROLLER = SimpleNamespace(get_live_trials=lambda: {trial("waiting")})
PAST = [Past(f"earlier-{n}", [(10, 0.1 * n), (20, 0.1 * n)]) for n in range(1, 5)]


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
        lost = trial("lost")
        for n in range(3):
            self.decide(rule, trial(f"t{n}"), 10, 0.1 * n)
        self.decide(rule, lost, 10, 0.01)
        rule.on_trial_error(CONTROLLER, lost)
        rule.on_trial_add(CONTROLLER, trial("again", [(10, 0.01)]))
        if name == "asha":
            recorded = rule._brackets[0]._rungs[-1][1]
            assert sorted(recorded) == ["again", "t0", "t1", "t2"]
        else:
            assert len(rule._results) == 4


def test_a_trial_that_goes_on_is_not_judged_twice_at_a_rung():
    rule = build("asha", PAST)
    resumed = trial("resumed", [(10, 0.15)])
    rule.on_trial_add(CONTROLLER, resumed)
    assert rule.on_trial_result(CONTROLLER, resumed, {"step": 20, "objective": 0.9}) == "CONTINUE"
    assert rule.on_trial_result(CONTROLLER, resumed, {"step": 30, "objective": 0.9}) == "CONTINUE"
    best = trial("best", [(10, 0.01), (30, 0.01)])
    rule.on_trial_add(CONTROLLER, best)
    worse = trial("worse", [(10, 0.05)])
    rule.on_trial_add(CONTROLLER, worse)
    assert rule.on_trial_result(CONTROLLER, worse, {"step": 30, "objective": 0.95}) == "STOP"

"""Importance finds the parameter that decides, and judges a conditional one where it exists."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import pytest

from eigensweep.results.importance import MOST_TRIALS, Scored, measure_importance
from eigensweep.results.trees import find_shares
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec

SPACE: dict[str, object] = {
    "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
    "optimizer.name": ["adam", "rmsprop"],
    "optimizer.alpha": {"low": 0.5, "high": 0.9, "when": {"optimizer.name": "rmsprop"}},
    "model.hidden_size": [8, 16, 32],
}


def axes():
    content = {
        "task": {"name": "copying", "delay": 5},
        "model": {"name": "lstm"},
        "training": {"steps": 10},
        "search": {"method": "random", "trials": 9, "space": SPACE},
    }
    space: Space = ExperimentSpec.model_validate(content).space()
    return space.axes("lstm")


def draw(count: int, value, seed: int = 1) -> list[Scored]:
    rng = random.Random(seed)
    trials = []
    for _ in range(count):
        name = rng.choice(["adam", "rmsprop"])
        params = {"optimizer.lr": 10 ** rng.uniform(-4, -1), "optimizer.name": name}
        if name == "rmsprop":
            params["optimizer.alpha"] = rng.uniform(0.5, 0.9)
        params["model.hidden_size"] = rng.choice([8, 16, 32])
        trials.append(Scored(params, value(params) + rng.gauss(0, 1e-3)))
    return trials


def test_the_parameter_that_decides_comes_first():
    trials = draw(60, lambda params: params["model.hidden_size"] / 32)
    found = measure_importance(axes(), trials)
    together = [each for each in found if each.path != "optimizer.alpha"]
    assert found[0].path == "model.hidden_size"
    assert found[0].share > 0.5
    assert sum(each.share for each in together) == pytest.approx(1.0)
    assert found == measure_importance(axes(), trials)


def test_of_a_large_grid_each_value_of_each_axis_is_seen():
    """A grid is walked with its last axis changing fastest, so every other trial has one value."""
    points = itertools.product(range(50), [8, 16, 32], range(10), ["adam", "rmsprop"])
    trials = [
        Scored(
            {"optimizer.lr": 10 ** -(1 + a / 25), "model.hidden_size": b, "optimizer.name": c},
            float(c == "adam"),
        )
        for a, b, _, c in points
    ]
    assert len(trials) > MOST_TRIALS
    first = measure_importance(axes(), trials)[0]
    assert (first.path, first.problem) == ("optimizer.name", None)
    assert first.share == pytest.approx(1.0, abs=0.01)


def test_a_conditional_parameter_is_judged_among_its_trials():
    trials = draw(60, lambda params: params.get("optimizer.alpha", 0.7))
    found = {each.path: each for each in measure_importance(axes(), trials)}
    alpha = found["optimizer.alpha"]
    assert alpha.share > 0.8
    assert alpha.trials == sum("optimizer.alpha" in trial.params for trial in trials)
    assert set(alpha.among) == {"optimizer.lr", "optimizer.alpha", "model.hidden_size"}
    assert found["optimizer.lr"].trials == 60


def test_what_cannot_be_told_has_a_reason_in_place_of_a_share():
    few = measure_importance(axes(), draw(3, lambda params: 1.0))
    assert {each.share for each in few} == {None}
    assert "4 are needed" in few[0].problem
    same = [Scored({"optimizer.lr": 0.01 * n}, 1.0) for n in range(1, 7)]
    lr = {"optimizer.lr": axes()["optimizer.lr"]}
    assert measure_importance(lr, same)[0].problem == "all 6 trials have the same value"
    (none,) = measure_importance(lr, [])
    assert none.share is None


def test_of_many_trials_an_even_share_is_used():
    trials = draw(MOST_TRIALS + 5, lambda params: params["optimizer.lr"])
    found = measure_importance(axes(), trials)
    assert found[0].path == "optimizer.lr"
    assert 1000 <= max(each.trials for each in found) <= MOST_TRIALS


def test_it_needs_no_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None; "
        "from eigensweep.results.trees import find_shares; "
        "print(find_shares([{'a': n, 'b': n % 2 == 0} for n in range(20)], list(range(20)))['a'])"
    )
    found = subprocess.check_output([sys.executable, "-W", "ignore", "-c", program], text=True)
    assert float(found) > 0.9


def test_a_dozen_trials_nearly_always_name_what_matters_most():
    def value(params):
        return (math.log10(params["optimizer.lr"]) + 2.5) ** 2 + params["model.hidden_size"] / 32

    right = 0
    for seed in range(20):
        found = measure_importance(axes(), draw(12, value, seed))
        right += found[0].path == "optimizer.lr"
    assert right >= 18


def test_values_that_are_no_numbers_have_a_column_each():
    points = [{"clip": clip, "flag": flag} for clip in (None, 1.0, 2.0) for flag in (True, False)]
    shares = find_shares(points * 3, [float(point["clip"] is None) for point in points * 3])
    assert shares["clip"] > 0.9
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(find_shares(points, [1.0] * 6).values()) == {0.0}


@pytest.mark.parametrize("trials", [6, 12, 40])
def test_shares_of_equal_splits_hang_on_nothing_but_the_trials(trials):
    rng = random.Random(trials)
    points = [
        {"lr": rng.choice([0.1, 0.01]), "size": rng.choice([8, 16]), "name": rng.choice("ab")}
        for _ in range(trials)
    ]
    values = [10 * p["lr"] + 0.2 * (p["name"] == "a") + p["size"] * rng.random() for p in points]
    shares = find_shares(points, values)
    turned = [dict(reversed(point.items())) for point in points]
    coded = [point | {"name": int(point["name"] == "a")} for point in points]
    for same in (
        find_shares(points, [value + 0.1 for value in values]),
        find_shares(turned, values),
        find_shares(coded, values),
    ):
        assert same == pytest.approx(shares)


def test_parameters_that_vary_together_have_equal_shares():
    points = [{"name": "ab"[n % 2], "twin": n % 2, "lr": n // 2} for n in range(12)]
    shares = find_shares(points, [n % 2 + 0.01 * n for n in range(12)])
    assert shares["name"] == shares["twin"] > 0.4


def test_of_two_unlike_splits_that_tie_one_gets_the_whole_gain():
    points = [{"first": n % 2, "second": n // 2 % 2} for n in range(40)]
    shares = find_shares(points, [float(p["first"] + p["second"]) for p in points])
    assert shares["first"] == pytest.approx(0.5, abs=0.1)

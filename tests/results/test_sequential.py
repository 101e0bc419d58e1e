"""One may look after each seed: simulated, with a look at every number of seeds from 2 to 40."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from eigensweep.results.sequential import (
    find_e_value,
    find_margin,
    look,
    look_back,
)
from eigensweep.results.statistics import compare_paired
from eigensweep.search_spaces.planning import find_seeds, find_sign_e_value

RUNS, MOST = 1000, 40


def draw_looks(rng: np.random.Generator, shift: float, spread: float):
    """Return mean and standard deviation of each run at 2 to `MOST` seeds."""
    values = rng.normal(shift, spread, size=(RUNS, MOST))
    n = np.arange(1, MOST + 1)
    means = values.cumsum(1) / n
    squares = (values**2).cumsum(1) - n * means**2
    return means[:, 1:], np.sqrt(np.maximum(squares[:, 1:], 0) / (n[1:] - 1))


@pytest.mark.parametrize("spread", [1e-6, 1.0, 1e6])
def test_equal_sides_are_ever_called_different_in_a_twentieth(spread):
    means, sds = draw_looks(np.random.default_rng(1), 0.0, spread)
    wrong = sum(
        any(find_e_value(m, s, n) >= 20 for n, (m, s) in enumerate(zip(*run, strict=True), 2))
        for run in zip(means, sds, strict=True)
    )
    assert stats.binom.sf(wrong - 1, RUNS, 0.05) > 1e-4, wrong / RUNS


def test_the_same_looks_at_a_p_value_would_err_far_more_often():
    means, sds = draw_looks(np.random.default_rng(1), 0.0, 1.0)
    n = np.arange(2, MOST + 1)
    p = 2 * stats.t.sf(np.abs(means) / (sds / np.sqrt(n)), n - 1)
    assert (p <= 0.05).any(1).mean() > 0.15


def test_the_interval_holds_at_every_look_together():
    means, sds = draw_looks(np.random.default_rng(2), 3.0, 2.0)
    missed = 0
    for run in zip(means, sds, strict=True):
        for n, (mean, sd) in enumerate(zip(*run, strict=True), 2):
            margin = find_margin(sd, n)
            if margin is not None and abs(mean - 3.0) > margin:
                missed += 1
                break
    assert stats.binom.sf(missed - 1, RUNS, 0.05) > 1e-4, missed / RUNS


def test_the_interval_excludes_zero_where_the_e_value_decides():
    rng = np.random.default_rng(3)
    for _ in range(300):
        n = int(rng.integers(2, 30))
        mean, sd = float(rng.normal()), float(rng.uniform(0.1, 2))
        margin = find_margin(sd, n)
        excluded = margin is not None and abs(mean) > margin
        assert excluded == (find_e_value(mean, sd, n) >= 20)


def test_a_difference_of_its_spread_is_decided_near_the_plan():
    means, sds = draw_looks(np.random.default_rng(4), 1.0, 1.0)
    stopped = [
        next((n for n, (m, s) in enumerate(zip(*run, strict=True), 2)
              if find_e_value(m, s, n) >= 20), MOST + 1)
        for run in zip(means, sds, strict=True)
    ]  # fmt: skip
    assert np.median(stopped) == pytest.approx(find_seeds(1.0), abs=3)
    assert np.mean(np.array(stopped) <= MOST) > 0.95


def test_few_seeds_decide_nothing_and_say_how_many_would():
    a, b = {0: 0.10, 1: 0.11}, {0: 0.30, 1: 0.32}
    seen = look(compare_paired(a, b))
    assert (seen.decided, seen.low, seen.high) == (False, None, None)
    assert seen.seeds == 3
    a, b = {**a, 2: 0.09}, {**b, 2: 0.29}
    assert look(compare_paired(a, b)).verdict == "better"
    assert look(compare_paired({0: 1.0}, {0: 2.0})) is None
    same = look(compare_paired(a, a))
    assert (same.e_value < 1, same.seeds) == (True, None)


@pytest.mark.parametrize(("examples", "share"), [(100, 0.99), (1000, 0.999)])
def test_coarse_values_decide_no_more_often_than_asked(examples, share):
    rng, error, wrong = np.random.default_rng(4), 0.007, 0
    for _ in range(RUNS):
        sides = [dict(enumerate(rng.binomial(examples, share, 10) / examples)) for _ in "ab"]
        looks = look_back(*sides, [range(n) for n in range(2, 11)], error)
        wrong += any(each.e_value >= 1 / error for each in looks)
    assert stats.binom.sf(wrong - 1, RUNS, error) > 1e-4, wrong / RUNS


def test_equal_differences_decide_as_their_signs_do():
    for n, decided in ((2, False), (5, False), (6, True)):
        a = {seed: 0.1 * seed for seed in range(n)}
        apart = look(compare_paired(a, {seed: v + 0.01 for seed, v in a.items()}), within=0.005)
        assert (apart.decided, apart.low is None, apart.seeds) == (decided, not decided, 6)
        assert apart.e_value == pytest.approx(2 ** (n - 1))
        assert look(compare_paired(a, a), within=0.005).decided == decided


def test_several_comparisons_share_the_error():
    five = {k: 1.0 + k / 1000 for k in range(5)}
    found = compare_paired(five, {k: 2 * v for k, v in five.items()})
    assert look(found).decided
    assert not look(found, comparisons=100_000).decided


def test_equal_sides_reach_a_threshold_in_a_twentieth_at_most():
    first = np.random.default_rng(9).integers(0, 2, (RUNS, MOST))
    wins = first.cumsum(1)
    n = np.arange(1, MOST + 1)
    wrong = sum(
        any(find_sign_e_value(w, k - w) >= 20 for k, w in zip(n, run, strict=True)) for run in wins
    )
    assert stats.binom.sf(wrong - 1, RUNS, 0.05) > 1e-4, wrong / RUNS


def test_an_interval_within_what_matters_makes_sides_equivalent():
    a = {seed: 1 + 0.001 * (seed % 3) for seed in range(8)}
    b = {seed: 1 + 0.001 * (seed % 2) for seed in range(8)}
    assert look(compare_paired(a, b)).verdict == "not distinguishable"
    assert look(compare_paired(a, b), within=0.1).verdict == "equivalent"
    assert look(compare_paired(a, b), within=1e-6).verdict == "not distinguishable"

"""The best of k trials: its mean without bias, its band as wide as it has to be."""

from __future__ import annotations

from itertools import combinations
from math import inf
from statistics import fmean

import numpy as np
import pytest

from eigensweep.results.effort import Search, choose_counts, compare_best, judge

VALID = [0.3, 0.1, 0.5, 0.1, 0.2, inf]
TEST = [0.31, 0.12, 0.45, 0.18, 0.2, 1.0]


@pytest.mark.parametrize("k", range(1, 7))
def test_the_mean_is_that_over_all_ways_to_draw_so_many(k):
    draws = list(combinations(range(6), k))
    # two that tie are one: their mean counts, whichever of them is drawn
    means = [0.31, 0.15, 0.45, 0.15, 0.2, 1.0]
    expected = fmean(means[min(draw, key=lambda at: VALID[at])] for draw in draws)
    assert Search(VALID, TEST, 0.0, 1.0).expect(k) == pytest.approx(expected)


def test_it_is_chosen_on_validation_and_reported_on_test_data():
    lucky = Search([0.1, 0.2, 0.3], [0.9, 0.2, 0.3], 0.0, 1.0)
    assert lucky.expect(3) == 0.9
    assert lucky.estimate(1).mean == pytest.approx(fmean([0.9, 0.2, 0.3]))


def test_trials_that_diverged_count_as_trials():
    trained, all_of_them = [0.1, 0.2], [0.1, 0.2, inf, inf]
    few = Search(trained, trained, 0.0, 1.0)
    many = Search(all_of_them, [0.1, 0.2, 1.0, 1.0], 0.0, 1.0)
    assert many.expect(2) > few.expect(2)
    assert many.expect(1) == pytest.approx(fmean([0.1, 0.2, 1.0, 1.0]))


def test_a_band_holds_its_mean_within_what_a_value_can_be():
    search = Search(VALID, TEST, 0.0, 1.0)
    for k in range(1, 7):
        found = search.estimate(k)
        assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    with pytest.raises(ValueError, match="k should be 1 to 6"):
        search.estimate(7)


def skewed(rng, n):
    """Few good settings, many bad ones, a tenth diverged; test data says almost the same."""
    valid = rng.beta(2, 2, n) ** 0.5
    valid[rng.random(n) < 0.1] = inf
    test = np.where(np.isfinite(valid), valid + rng.normal(0, 0.01, n).clip(-0.02, 0.02), 1.0)
    return valid, test


def noisy(rng, n):
    """Validation data tells half of what counts."""
    valid = rng.random(n)
    return valid, (valid + rng.random(n)) / 2


def exact(rng, n):
    """Test and validation data say the same, over orders of magnitude."""
    valid = 10.0 ** -rng.uniform(0, 4, n)
    return valid, valid


def unrelated(rng, n):
    """Validation data tells nothing."""
    return rng.random(n), rng.random(n)


@pytest.mark.parametrize("world", [skewed, noisy, exact, unrelated])
@pytest.mark.parametrize("n", [8, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.quick_cases(1)
def test_a_band_covers_the_truth_in_nineteen_of_twenty_searches(world, n):
    rng = np.random.default_rng(7)
    most = n // 2 if world is unrelated else n  # there they are 92% at all trials
    for k in sorted({1, 3, n // 2, most}):
        valid, test = world(rng, 10_000 * k)
        best = valid.reshape(-1, k).argmin(axis=1)
        truth = test.reshape(-1, k)[np.arange(len(best)), best].mean()
        searches = 100
        covered = 0
        for seed in range(searches):
            valid, test = world(rng, n)
            found = Search(valid.tolist(), test.tolist(), 0.0, 1.0, seed).estimate(k)
            covered += found.low <= truth <= found.high
        # 95 of 100; chance alone takes seven off in about one of 500 such counts
        assert covered >= 88, (k, covered / searches)


@pytest.mark.parametrize("world", [skewed, noisy, exact])
@pytest.mark.quick_cases(1)
def test_two_searches_of_one_kind_are_rarely_told_apart(world):
    rng = np.random.default_rng(11)
    wrong = 0
    for seed in range(100):
        a, b = (
            Search(*(part.tolist() for part in world(rng, n)), 0.0, 1.0, 2 * seed + n % 2)
            for n in (40, 11)
        )
        wrong += judge(compare_best(a, 5, b, 5)) != "not distinguishable"
    assert wrong <= 10


def test_who_is_far_better_is_told_apart_with_enough_trials():
    rng = np.random.default_rng(3)
    good, bad = 0.1 + 0.1 * rng.random(30), 0.5 + 0.1 * rng.random(12)
    a, b = (Search(v.tolist(), v.tolist(), 0.0, 1.0, n) for n, v in enumerate((good, bad)))
    assert judge(compare_best(a, 3, b, 3)) == "better"
    assert judge(compare_best(b, 3, a, 3)) == "worse"
    assert judge(compare_best(a, 12, b, 12)) == "not distinguishable", "more luck may help the bad"


def test_many_trials_take_no_more_memory_than_their_draws():
    search = Search(np.linspace(0, 1, 10_000).tolist(), [0.5] * 10_000, 0.0, 1.0)
    assert search.estimate(5_000).mean == pytest.approx(0.5)
    assert search._quantiles.shape == (400, 10_000)


def test_counts_begin_with_one_and_end_with_all():
    assert choose_counts(1) == [1]
    assert choose_counts(100)[0] == 1
    assert choose_counts(100)[-1] == 100
    assert len(choose_counts(10_000)) <= 16

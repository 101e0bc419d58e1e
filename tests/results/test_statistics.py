"""Intervals cover what they claim, and p-values are those of scipy, corrected after Holm."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from eigensweep.results.statistics import (
    CONFIDENCE,
    Difference,
    compare_first_steps,
    compare_paired,
    correct,
    find_alike_margin,
    find_alike_p,
    find_detectable,
    find_domain,
    holm,
    summarize,
)
from eigensweep.tasks import TASKS

RUNS = 2000
"""Simulated experiments. The share that an interval covers has a standard error of 0.005."""


def by_seed(values) -> dict[int, float]:
    return dict(enumerate(map(float, values)))


def assert_is_confidence(covered: int) -> None:
    """Fail where so many of `RUNS` would be a wonder (one in ten thousand) at 95%."""
    low, high = stats.binom.interval(1 - 1e-4, RUNS, CONFIDENCE)
    assert low <= covered <= high, covered / RUNS


@pytest.mark.parametrize("n", [2, 3, 10])
class TestIntervalsCoverWhatTheyClaim:
    def test_of_means(self, n):
        draws = np.random.default_rng(n).normal(3.0, 0.7, size=(RUNS, n))
        found = [summarize(list(row)) for row in draws]
        assert_is_confidence(sum(each.low <= 3.0 <= each.high for each in found))

    def test_of_paired_differences_whose_seeds_matter_most(self, n):
        rng = np.random.default_rng(100 + n)
        seeds = rng.normal(0.0, 5.0, size=(RUNS, n))  # what both sides share
        a = seeds + rng.normal(1.2, 0.5, size=(RUNS, n))
        b = seeds + rng.normal(1.0, 0.2, size=(RUNS, n))
        found = [compare_paired(by_seed(x), by_seed(y)) for x, y in zip(a, b, strict=True)]
        assert_is_confidence(sum(each.low <= 0.2 <= each.high for each in found))

    def test_equal_sides_are_called_different_once_in_twenty_times(self, n):
        rng = np.random.default_rng(200 + n)
        pairs = rng.normal(size=(RUNS, 2, n))
        found = [compare_paired(by_seed(x), by_seed(y)).verdict for x, y in pairs]
        assert_is_confidence(found.count("not distinguishable"))


class TestIntervalsStayWhereTheMetricCanLie:
    @given(st.lists(st.floats(0, 1, allow_subnormal=False), min_size=2, max_size=6))
    def test_of_fractions(self, values):
        found = summarize(values, "fraction")
        assert 0 <= found.low <= found.mean + 1e-12
        assert found.mean - 1e-12 <= found.high <= 1

    @given(st.lists(st.floats(0, 1e30, allow_subnormal=False), min_size=2, max_size=6))
    def test_of_losses(self, values):
        found = summarize(values, "positive")
        assert 0 <= found.low <= found.mean <= found.high

    def test_accuracies_of_two_seeds_do_not_exceed_one(self):
        plain, inside = summarize([0.99, 0.999]), summarize([0.99, 0.999], "fraction")
        assert plain.high > 1 > inside.high

    def test_a_narrow_interval_is_the_plain_one(self):
        values = [0.5001, 0.5002, 0.4999]
        plain = summarize(values).interval
        assert summarize(values, "fraction").interval == pytest.approx(plain, rel=1e-5)
        assert summarize(values, "positive").interval == pytest.approx(plain, rel=1e-5)

    def test_ten_accuracies_near_the_edge_are_covered(self):
        draws = np.random.default_rng(5).beta(18, 2, size=(RUNS, 10))
        found = [summarize(list(row), "fraction") for row in draws]
        covered = sum(each.low <= 0.9 <= each.high for each in found)
        assert covered / RUNS == pytest.approx(CONFIDENCE, abs=0.02)

    def test_a_mean_that_rounds_to_one_has_an_interval(self):
        found = summarize([1.0] * 9 + [0.9999999999999999], "fraction")
        assert (found.mean, found.interval) == (1.0, (1.0, 1.0))

    def test_it_holds_the_mean_of_equal_fractions(self):
        for value in (0.059588, 0.1, 1 / 3, 0.999):
            found = summarize([value] * 10, "fraction")
            assert found.low <= found.mean <= found.high

    def test_values_outside_of_the_domain_make_it_the_whole_line(self):
        assert summarize([0.5, 1.5], "fraction") == summarize([0.5, 1.5])
        assert summarize([-0.5, 1.5], "positive") == summarize([-0.5, 1.5])

    def test_every_loss_and_fraction_of_our_tasks_has_its_domain(self):
        wanted = {"fraction": "fraction", "nats": "positive", "bits": "positive"}
        wanted |= {"squared error": "positive", "dB²": "positive"}
        metrics = [metric for task in TASKS.values() for metric in task.Config().metrics]
        found = {metric.name: find_domain(metric.name) for metric in metrics}
        assert found == {each.name: wanted.get(each.unit, "real") for each in metrics}

    def test_own_metrics_have_the_domain_of_their_last_words(self):
        names = ("f1", "macro_f1", "test/word_accuracy", "char_mse", "f1_ratio", "log_mse")
        domains = ["fraction", "fraction", "fraction", "positive", "real", "real"]
        assert [find_domain(name) for name in names] == domains
        high = summarize([0.99, 0.999, 1.0], find_domain("macro_f1")).interval[1]
        percent = summarize([99.0, 99.9, 100.0], find_domain("macro_f1")).interval[1]
        assert high < 1 < percent


class TestFirstSteps:
    def test_equal_sides_are_called_different_in_a_twentieth(self):
        """On a grid, with a third of the trainings censored, so that ties are many."""
        rng, runs, wrong = np.random.default_rng(3), 300, 0
        for _ in range(runs):
            steps = np.ceil(rng.exponential(90.0, size=(2, 5)) / 10) * 10
            a, b = (by_seed(np.where(row > 100, np.inf, row)) for row in steps)
            wrong += compare_first_steps(a, b, 100).verdict != "not distinguishable"
        assert stats.binom.sf(wrong - 1, runs, 0.05) > 1e-4, wrong / runs

    def test_p_values_are_near_those_of_scipys_log_rank_test(self):
        rng = np.random.default_rng(4)
        x, y = rng.exponential(50, size=40), rng.exponential(130, size=40)
        a, b = (np.where(row > 100, np.inf, row) for row in (x, y))
        theirs = stats.logrank(
            *(stats.CensoredData(uncensored=row[row <= 100], right=row[row > 100] * 0 + 100)
              for row in (x, y))
        )  # fmt: skip
        found = compare_first_steps(by_seed(a), by_seed(b), 100)
        assert found.p == pytest.approx(theirs.pvalue, rel=0.3, abs=0.005)
        assert found.verdict == "better"
        assert found.mean == pytest.approx(np.minimum(x, 100).mean() - np.minimum(y, 100).mean())

    def test_who_is_earlier_hangs_not_on_one_that_never_comes(self):
        early, late = [10, 10, 20, 30, inf, 20, 10, 10, 10, 10], [40] * 5 + [60, 110, 60, 60, 50]
        found = compare_first_steps(by_seed(early), by_seed(late), 1000)
        assert found.mean > 0
        assert found.p < 0.05
        assert found.verdict == correct([found])[0].verdict == "better"
        assert compare_first_steps(by_seed(late), by_seed(early), 1000).verdict == "worse"

    def test_four_seeds_can_decide_and_three_cannot(self):
        early, late = [10.0, 20.0, 30.0, 20.0], [np.inf] * 4
        assert compare_first_steps(by_seed(early), by_seed(late), 90).p == pytest.approx(2 / 70)
        three = compare_first_steps(by_seed(early[:3]), by_seed(late[:3]), 90)
        assert (three.p, three.verdict) == (pytest.approx(0.1), "not distinguishable")
        assert compare_first_steps({0: 1.0}, {0: 2.0}, 90).verdict == "not comparable"


def test_what_is_called_detectable_is_found_four_times_in_five():
    rng, runs = np.random.default_rng(8), 1000
    for n in (3, 6, 10):
        shift = find_detectable(0.7, n)
        rows = rng.normal(shift, 0.7, size=(runs, n))
        p = stats.ttest_1samp(rows, 0, axis=1).pvalue
        assert (p <= 0.05).mean() == pytest.approx(0.8, abs=0.05)


def test_likeness_is_claimed_falsely_once_in_twenty_times():
    """At the edge of the margin, which is the worst case of two one-sided tests."""
    rng, runs = np.random.default_rng(9), 1000
    rows = rng.normal(0.2, 0.1, size=(runs, 8))
    zero = by_seed(np.zeros(8))
    p = [find_alike_p(compare_paired(by_seed(row), zero), 0.2) for row in rows]
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.025)
    assert find_alike_p(compare_paired(zero, zero), 0.1) == 0.5**8, "a sign test"
    assert find_alike_p(compare_paired({0: 1.0}, {0: 1.0}), 0.1) is None


def test_several_equal_sides_get_a_wrong_verdict_in_a_twentieth():
    """What Holm is for: uncorrected, six comparisons err in a fifth of all experiments."""
    rng = np.random.default_rng(7)
    uncorrected, wrong, runs = 0, 0, 1000
    for _ in range(runs):
        sides = [by_seed(rng.normal(size=5)) for _ in range(4)]
        found = [compare_paired(sides[i], sides[j]) for i in range(4) for j in range(i)]
        uncorrected += any(each.verdict != "not distinguishable" for each in found)
        wrong += any(each.verdict != "not distinguishable" for each in correct(found))
    assert wrong / runs < 0.05 + 0.025  # Holm allows 0.05; this is 3.6 standard errors above it
    assert uncorrected / runs > 0.15


def test_numbers_are_those_of_scipy():
    a, b = [0.31, 0.42, 0.27, 0.38], [0.45, 0.47, 0.44, 0.40]
    found, theirs = compare_paired(by_seed(a), by_seed(b), baseline=0.5), stats.ttest_rel(a, b)
    interval = theirs.confidence_interval(0.95)
    assert (found.p, found.corrected_p) == pytest.approx((theirs.pvalue, theirs.pvalue))
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))
    assert (found.mean, found.effect, found.n) == pytest.approx((-0.095, -0.19, 4))
    assert found.sd == pytest.approx(np.std(np.subtract(a, b), ddof=1))
    summary = summarize(a)
    interval = stats.ttest_1samp(a, 0).confidence_interval(0.95)
    assert (summary.low, summary.high) == summary.interval
    assert summary.interval == pytest.approx((interval.low, interval.high))
    assert summary.standard_error == pytest.approx(stats.sem(a))


def test_holm_is_the_case_of_his_paper_by_hand():
    """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1; the last may not be below the third."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_correction_changes_verdicts_and_skips_the_untested():
    close = compare_paired({0: 1.0, 1: 1.1, 2: 0.9}, {0: 1.2, 1: 1.22, 2: 1.15})
    assert (close.verdict, close.words) == ("better", "better")
    alone = compare_paired({0: 1.0}, {0: 2.0})
    first, second, third = correct([close, alone, close])
    assert first.corrected_p == third.corrected_p == pytest.approx(2 * close.p)
    assert first.verdict == "not distinguishable"
    assert second == alone


def test_sides_are_paired_by_seed_and_only_where_both_have_it():
    found = compare_paired({5: 1.0, 3: 2.0, 9: 7.0}, {3: 2.5, 4: 0.0, 5: 1.4}, better="higher")
    assert (found.seeds, found.n, found.mean) == ((3, 5), 2, pytest.approx(-0.45))
    assert found.verdict == "not distinguishable"


@pytest.mark.parametrize("by", [1.0, 0.1])
def test_equal_differences_are_judged_by_their_signs(by):
    for n, verdict in ((2, "not distinguishable"), (5, "not distinguishable"), (6, "better")):
        base = by_seed(np.arange(n) / 7)
        more = {seed: value + by for seed, value in base.items()}
        found = compare_paired(more, base, better="higher")
        assert (found.p, found.verdict) == (0.5 ** (n - 1), verdict)
        assert find_alike_p(found, 2 * by) == 0.5**n
        assert find_alike_p(found, by / 2) == 1
        assert (find_alike_margin(found) is None) == (n < 5)
    none = compare_paired(base, base)
    assert (none.p, none.verdict) == (1, "not distinguishable")


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        ({0: 1.0}, {1: 2.0}, "not comparable because no seed is shared"),
        ({0: 1.0}, {0: 2.0}, "not comparable because one shared seed gives no interval"),
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, "not distinguishable"),
    ],
)
def test_what_cannot_be_told_is_said_in_words(a, b, words):
    found = compare_paired(a, b)
    assert found.words == words
    assert isinstance(found, Difference)


def test_one_value_is_its_own_mean_without_an_interval():
    assert summarize([2.0]).to_dict() == dict(mean=2.0, n=1, sd=None, low=None, high=None)
    for values in ([], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="at least one value, all of them finite"):
            summarize(values)

"""Decides while seeds are added: one may look after each of them, and errs in 5% of all cases.

The e-value is the Bayes factor of the t-statistic (`search_spaces.planning`): a martingale if there
is no difference, whatever the spread is. By Ville's inequality it ever reaches 20 in at most 5% of
cases. The interval holds the means that were never excluded in this way. Where all differences are
equal, as of coarse accuracies, there is no spread to go by, and their signs decide.

Source: Pérez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing" (2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, log
from statistics import fmean
from typing import ClassVar, Literal

from eigensweep.common.direction import Better, sign
from eigensweep.results.statistics import (
    LARGEST_EXPONENT,
    SIGNIFICANCE,
    Difference,
    Domain,
    compare_paired,
    find_spread,
    make_interval,
)
from eigensweep.search_spaces.planning import SPREADLESS, find_log_factor, find_seeds

VerdictSoFar = Literal["better", "worse", "equivalent", "not distinguishable"]
"""What differences say of the first side: `equivalent` where it is shown to differ by no more than
what is of interest."""


@dataclass(frozen=True)
class Look:
    """What the first so many seeds say."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    seeds: int
    """Seeds that the comparison counts"""
    mean: float
    """Mean of first minus second, seed by seed"""
    low: float | None
    """Lower end of an interval that holds at every look together; null where nothing is excluded"""
    high: float | None
    """Upper end of the same"""
    e_value: float
    """Evidence against no difference"""


@dataclass(frozen=True)
class SoFar:
    """What the seeds say so far, where more may be added and looked at, one after another."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    e_value: float
    """Evidence against no difference; by chance it ever gets to `wanted` in at most 5% of cases"""
    decided: bool
    verdict: VerdictSoFar
    """Of the first side; `equivalent`: it is shown to differ by no more than `smallest`"""
    wanted: float
    """The e-value that decides: 20, times the pairs that are compared"""
    low: float | None
    """Lower end of the mean's interval that holds at every look together; null: anything"""
    high: float | None
    """Upper end of the same"""
    seeds: int | None
    """Seeds at which a difference of this size and spread is decided, about; null beyond 1,000"""


def look(
    difference: Difference,
    comparisons: int = 1,
    *,
    error: float = SIGNIFICANCE,
    within: float | None = None,
) -> SoFar | None:
    """Return what a paired difference says so far, None for fewer than two seeds.

    The error is divided among the `comparisons` that are made together. Sides are equivalent where
    the interval lies within ± `within`.
    """
    mean, sd, n = difference.mean, difference.sd, difference.n
    if mean is None or sd is None:
        return None
    error /= comparisons
    margin = _find_margin(mean, sd, n, error)
    verdict = judge(mean, sd, n, difference.better, error, within)
    return SoFar(
        e_value=find_e_value(mean, sd, n),
        decided=verdict != "not distinguishable",
        verdict=verdict,
        wanted=1 / error,
        low=None if margin is None else mean - margin,
        high=None if margin is None else mean + margin,
        seeds=find_seeds(_effect(mean, sd), error),
    )


def look_back(
    a: Mapping[int, float], b: Mapping[int, float], parts: Iterable[Iterable[int]], error: float
) -> Iterator[Look]:
    """Yield what each part of the seeds says of `a` against `b`; parts of one seed say nothing."""
    for seeds in map(list, parts):
        found = compare_paired(*({seed: side[seed] for seed in seeds} for side in (a, b)))
        if found.mean is not None and (seen := look(found, error=error)) is not None:
            yield Look(found.n, found.mean, seen.low, seen.high, seen.e_value)


def judge(
    mean: float, sd: float, n: int, better: Better, error: float, within: float | None = None
) -> VerdictSoFar:
    """Return what n differences, first minus second, say of the first side."""
    margin = None if within is None else _find_margin(mean, sd, n, error)
    if within is not None and margin is not None and abs(mean) + margin <= within:
        return "equivalent"
    if find_e_value(mean, sd, n) < 1 / error:
        return "not distinguishable"
    return "better" if sign(better) * mean < 0 else "worse"


def find_e_value(mean: float, sd: float, n: int) -> float:
    """Return the e-value of n differences with this mean and standard deviation."""
    return exp(min(find_log_factor(_effect(mean, sd), n), LARGEST_EXPONENT))


def find_margin(sd: float, n: int, error: float = SIGNIFICANCE) -> float | None:
    """Return the half width of the mean's interval at n seeds, None where nothing is excluded."""
    effect = _find_least_effect(n, error)
    return None if effect is None else effect * sd


def _find_margin(mean: float, sd: float, n: int, error: float) -> float | None:
    """Return the same for values of this mean; None also where so few of them are all equal."""
    is_equal = sd * SPREADLESS <= abs(mean)
    if is_equal and find_log_factor(SPREADLESS, n) < log(1 / error):
        return None
    return find_margin(sd, n, error)


@lru_cache
def _find_least_effect(n: int, error: float) -> float | None:
    """Return the smallest effect that is decided at n seeds, None where there is none."""
    wanted, low, high = log(1 / error), 0.0, 1.0
    if find_log_factor(SPREADLESS / 2, n) <= wanted:
        return None
    while find_log_factor(high, n) < wanted:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if find_log_factor(middle, n) >= wanted else (middle, high)
    return high


def find_interval(
    values: Sequence[float], domain: Domain, error: float = SIGNIFICANCE
) -> tuple[float, float] | None:
    """Return the interval of a mean that holds at every look together; None: anything."""
    mean, n = fmean(values), len(values)
    if n < 2:
        return None
    margin = _find_margin(mean, find_spread(values, mean), n, error)
    return None if margin is None else make_interval(values, mean, margin, domain)


def count_first(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[int, int]:
    """Return on how many shared seeds each side was first at a threshold; ties count for none.

    >>> count_first({0: 10, 1: 20, 2: inf}, {0: 30, 1: 20, 2: inf})
    (1, 0)
    """
    shared = a.keys() & b.keys()
    return sum(a[seed] < b[seed] for seed in shared), sum(a[seed] > b[seed] for seed in shared)


def _effect(mean: float, sd: float) -> float:
    return abs(mean) / sd if sd else (inf if mean else 0.0)

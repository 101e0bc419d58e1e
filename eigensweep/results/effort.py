"""How good the best of k trials is, so that models are compared at equal tuning effort.

Of the n trials of a search, k are drawn, the one with the best validation value is chosen, and its
test value counts. The mean over all draws is the estimate: the trial at rank r is the best one in
C(n - r, k - 1) of the C(n, k) draws. It has no bias if trials are drawn independently.

The band is for 95% at each k alone, whatever the distribution is. Quantiles of n draws are those of
uniform numbers. With such quantiles drawn at random, the band lets all values between two trials be
as good as the better one, or as bad as the worse one, and those beyond the best trial as good as a
value can be. So it is wide where k is near n: nobody knows then what a luckier search would find.
A trial's test value is taken to be its own or that of a neighbour in the order of validation
values, since a new trial may be as lucky as they were. Simulated, 95% are held for all k;
only where validation data tells nothing of test data, they are 92% at k = n.

Source: Dodge et al., "Show your work", EMNLP 2019; Tang et al., ACL 2020, for the estimate without
bias; Lourie, Cho & He, NAACL 2024, for why the bootstrap fails near k = n; Gaffke (2005) and
Learned-Miller & Thomas (2020) for the bounds of a mean by random quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigensweep.results.statistics import CONFIDENCE, Verdict

Array = NDArray[np.float64]

MOST_NUMBERS = 2_000_000
"""Random numbers of one band; a search of many trials has fewer draws."""
MOST_DRAWS, FEWEST_DRAWS = 20_000, 400
MOST_RANKS = 40
"""The best of k is among the first 40 k-ths of all trials, but for one in e^40 draws."""
NEIGHBOURS = 2
"""Trials before and after one whose test values it might have had."""


@dataclass(frozen=True)
class Estimate:
    """A mean with both ends of its band."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Search:
    """The trials of a search; lower values are better, so negate those of which higher ones are."""

    valid: Sequence[float]
    """What a trial is chosen by; infinite for the last choice."""
    test: Sequence[float]
    """What then counts."""
    best: float
    """The best that a test value can be."""
    worst: float
    """The worst that it is taken for."""
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.valid) != len(self.test) or not self.valid:
            raise ValueError(f"{len(self.valid)} validation and {len(self.test)} test values")

    @property
    def n(self) -> int:
        return len(self.valid)

    @cached_property
    def _in_order(self) -> Array:
        """Test values, those of the best trials first; trials that tie have their mean."""
        valid, test = np.asarray(self.valid, float), np.asarray(self.test, float)
        _, place = np.unique(valid, return_inverse=True)
        means: Array = np.bincount(place, test) / np.bincount(place)
        return means[np.sort(place)]

    @cached_property
    def _quantiles(self) -> Array:
        """Logarithms of 1 - u for the quantiles u of the trials in order, (draws, n)."""
        draws = min(MOST_DRAWS, max(FEWEST_DRAWS, MOST_NUMBERS // self.n))
        steps = np.random.default_rng(self.seed).exponential(size=(draws, self.n))
        found: Array = -np.cumsum(steps / np.arange(self.n, 0, -1), axis=1)  # after Rényi
        return found

    @cached_property
    def _lucky(self) -> Array:
        """A test value for each trial and draw: its own, or that of a neighbour, (draws, n)."""
        rng = np.random.default_rng([self.seed, 1])
        places = np.arange(self.n) + rng.integers(
            -NEIGHBOURS, NEIGHBOURS, self._quantiles.shape, endpoint=True
        )
        trained = int(np.isfinite(np.asarray(self.valid, float)).sum())
        kept = np.arange(self.n) >= trained
        places = np.where(kept, np.arange(self.n), places.clip(0, max(0, trained - 1)))
        return self._in_order[places]

    @cached_property
    def _drawn(self) -> dict[int, tuple[Array, Array]]:
        """What `draw` has found, by k."""
        return {}

    def expect(self, k: int) -> float:
        """Return the mean test value of the best of k trials, drawn from these without return.

        >>> Search([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], 0.0, 30.0).expect(2)
        13.333333333333334
        """
        self._check(k)
        left = self.n - np.arange(self.n)  # a trial and those behind it
        # P(none of the first r trials is drawn), which ends at 0 where k are not left
        none = np.concatenate([[1.0], np.cumprod(np.maximum(left - k, 0) / left)])
        return float((none[:-1] - none[1:]) @ self._in_order)

    def draw(self, k: int) -> tuple[Array, Array]:
        """Return the mean of the best of k at random quantiles: as good and as bad as it may be."""
        self._check(k)
        if k not in self._drawn:
            first = min(self.n, self.n * MOST_RANKS // k)  # those behind are never the best
            none, lucky = np.exp(k * self._quantiles[:, :first]), self._lucky[:, :first]
            gaps = -np.diff(none, axis=1)  # shares of the draws whose best is between two trials
            between = np.einsum("ij,ij->i", gaps, lucky[:, :-1])
            between_bad = np.einsum("ij,ij->i", gaps, lucky[:, 1:])
            before, behind = 1 - none[:, 0], none[:, -1]
            good = before * self.best + between + behind * lucky[:, -1]
            bad = before * lucky[:, 0] + between_bad + behind * self.worst
            self._drawn[k] = good, bad
        return self._drawn[k]

    def estimate(self, k: int) -> Estimate:
        """Return the mean test value of the best of k trials, with its band."""
        good, bad = self.draw(k)
        mean = self.expect(k)
        low, high = _ends(good, bad)
        return Estimate(mean, min(low, mean), max(high, mean))

    def _check(self, k: int) -> None:
        if not 1 <= k <= self.n:
            raise ValueError(f"k should be 1 to {self.n}, the number of trials; it is {k}")


def compare_best(a: Search, k: int, b: Search, m: int) -> Estimate:
    """Return what the best of k trials of `a` has more than the best of m trials of `b`."""
    (good, bad), (others_good, others_bad) = a.draw(k), b.draw(m)
    draws = min(len(good), len(others_good))
    mean = a.expect(k) - b.expect(m)
    low, high = _ends((good[:draws] - others_bad[:draws]), (bad[:draws] - others_good[:draws]))
    return Estimate(mean, min(low, mean), max(high, mean))


def judge(difference: Estimate) -> Verdict:
    """Return what a difference says of its first side, where lower is better."""
    if difference.high < 0:
        return "better"
    return "worse" if difference.low > 0 else "not distinguishable"


def choose_counts(n: int, most: int = 16) -> list[int]:
    """Return numbers of trials from 1 to n, evenly spread on a scale of powers.

    >>> choose_counts(12, 6), choose_counts(3)
    ([1, 2, 3, 4, 7, 12], [1, 2, 3])
    """
    return sorted({round(float(k)) for k in np.geomspace(1, n, most)})


def _ends(good: Any, bad: Any) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    return float(np.quantile(good, tail)), float(np.quantile(bad, 1 - tail))

"""How many seeds it takes to decide a difference, one seed at a time.

The evidence is the Bayes factor of the t-statistic, whose alternative is an effect (mean by
standard deviation) that is normal around zero: in equal parts with a variance of 1, for differences
as large as their spread, and of 100, for those that few seeds show.

Source: Gönen et al. (2005). `workers.shared.sequential` says why one may look after each seed.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, inf, log, log1p
from statistics import fmean
from typing import Final

MOST_SEEDS: Final = 1_000
"""Seeds up to which `find_seeds` looks."""
VARIANCES: Final = (1.0, 100.0)
"""Of the effect under the alternative."""


def find_seeds(effect: float, error: float = 0.05) -> int | None:
    """Return the seeds at which an effect is decided that is always this large; None: too many.

    The error is the share of cases in which one comparison may be wrong.
    """
    wanted, counts = log(1 / error), range(2, MOST_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda n: find_log_factor(effect, n) >= wanted)
    return counts[place] if place < len(counts) else None


def find_log_factor(effect: float, n: int) -> float:
    """Return the logarithm of the Bayes factor at n seeds of an effect."""
    x = n * effect**2 / (n - 1)  # T² by its degrees of freedom
    logs = []
    for variance in VARIANCES:
        wide = log1p(n * variance)
        grown = wide if x == inf else log1p(x) - log1p(x / (1 + n * variance))
        logs.append(n / 2 * grown - wide / 2)
    most = max(logs)
    return most + log(fmean(exp(each - most) for each in logs))

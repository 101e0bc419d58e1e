"""How many seeds it takes to decide a difference, one seed at a time.

The evidence is the Bayes factor of the t-statistic, whose alternative is an effect (mean by
standard deviation) that is normal around zero: in equal parts with a variance of 1, for differences
as large as their spread, and of 100, for those that few seeds show.

First steps to a threshold have an e-value by their signs: the seeds on which one side was first,
against a fair coin.

Source: Gönen et al. (2005); Robbins (1970) for the mixture over coins. `results.sequential`
says why one may look after each seed.
"""

from __future__ import annotations

from bisect import bisect_left
from math import exp, lgamma, log, log1p
from statistics import fmean
from typing import Final

MOST_SEEDS: Final = 1_000
"""Seeds up to which `find_seeds` looks."""
VARIANCES: Final = (1.0, 100.0)
"""Of the effect under the alternative."""
SPREADLESS: Final = 1e9
"""Effects from here on have no spread but that of rounding: all differences are equal."""


def find_seeds(effect: float, error: float = 0.05) -> int | None:
    """Return the seeds at which an effect is decided that is always this large; None: too many.

    The error is the share of cases in which one comparison may be wrong.
    """
    wanted, counts = log(1 / error), range(2, MOST_SEEDS + 1)
    place = bisect_left(counts, True, key=lambda n: find_log_factor(effect, n) >= wanted)
    return counts[place] if place < len(counts) else None


def find_log_factor(effect: float, n: int) -> float:
    """Return the logarithm of the Bayes factor at n seeds of an effect.

    Equal differences are those of coarse values, whose spread says nothing: there it is that of a
    bet on each sign being the first one's.
    """
    if effect >= SPREADLESS:
        return (n - 1) * log(2)
    x = n * effect**2 / (n - 1)  # T² by its degrees of freedom
    logs = []
    for variance in VARIANCES:
        wide = log1p(n * variance)
        grown = log1p(x) - log1p(x / (1 + n * variance))
        logs.append(n / 2 * grown - wide / 2)
    most = max(logs)
    return most + log(fmean([exp(each - most) for each in logs]))


def find_sign_e_value(wins: int, losses: int) -> float:
    """Return the e-value of a coin's sides against a fair one, by any other coin in equal parts.

    >>> round(find_sign_e_value(8, 0), 1), round(find_sign_e_value(9, 1), 1)
    (28.4, 9.3)
    """
    n = wins + losses
    return exp(n * log(2) + lgamma(wins + 1) + lgamma(losses + 1) - lgamma(n + 2))


def find_sign_seeds(losses: int, error: float = 0.05) -> int:
    """Return the seeds at which a side is decided that is first on all of them but `losses`.

    >>> find_sign_seeds(0), find_sign_seeds(1)
    (8, 12)
    """
    return next(
        n for n in range(losses, MOST_SEEDS) if find_sign_e_value(n - losses, losses) >= 1 / error
    )

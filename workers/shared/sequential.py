"""Decides while seeds are added: one may look after each of them, and errs in 5% of all cases.

The e-value is the Bayes factor of the t-statistic, with an effect (mean by standard deviation) that
is standard normal under the alternative. It is a martingale if there is no difference, whatever the
spread is, so by Ville's inequality it ever reaches 20 in at most 5% of cases. The interval holds
the means that were never excluded in this way.

Source: Gönen et al. (2005) for the factor; Pérez-Ortiz et al., "E-statistics, group invariance and
anytime-valid testing" (2024), for looking at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, log1p, sqrt

from eigensweep.workers.shared.statistics import (
    LARGEST_EXPONENT,
    SIGNIFICANCE,
    Difference,
)

MOST_SEEDS = 1_000
"""Seeds up to which `find_seeds` looks."""


@dataclass(frozen=True)
class SoFar:
    """What differences say as far as seeds have come."""

    e_value: float
    """Evidence against no difference; 1 / 0.05 decides."""
    low: float | None
    """Lower end of the mean's interval that holds at every look together; None: anything."""
    high: float | None
    """Upper end of the same."""
    seeds: int | None
    """Seeds at which a difference of this size and spread is decided, about; None: too many."""
    decided: bool

    def to_dict(self) -> dict[str, float | int | bool | None]:
        return dict(vars(self))


def look(difference: Difference, comparisons: int = 1) -> SoFar | None:
    """Return what a paired difference says so far, None for fewer than two seeds.

    The error is divided among the `comparisons` that are made together.
    """
    mean, sd, n = difference.mean, difference.sd, difference.n
    if mean is None or sd is None:
        return None
    e = find_e_value(mean, sd, n)
    margin = find_margin(sd, n, SIGNIFICANCE / comparisons)
    effect = abs(mean) / sd if sd else (inf if mean else 0.0)
    return SoFar(
        e_value=e,
        low=None if margin is None else mean - margin,
        high=None if margin is None else mean + margin,
        seeds=find_seeds(effect, SIGNIFICANCE / comparisons),
        decided=e >= comparisons / SIGNIFICANCE,
    )


def find_e_value(mean: float, sd: float, n: int) -> float:
    """Return the e-value of n differences with this mean and standard deviation.

    >>> round(find_e_value(1.0, 1.0, 4), 2), round(find_e_value(1.0, 1.0, 20), 1)
    (1.52, 177.7)
    """
    effect = abs(mean) / sd if sd else (inf if mean else 0.0)
    return exp(min(_log_factor(effect, n), LARGEST_EXPONENT))


def find_margin(sd: float, n: int, error: float = SIGNIFICANCE) -> float | None:
    """Return the half width of the mean's interval at n seeds, None where nothing is excluded."""
    width, wanted = 1 + n, exp(2 / n * (log(1 / error) + log(1 + n) / 2))
    if wanted >= width:
        return None
    return sd * sqrt((wanted - 1) / (1 - wanted / width) * (n - 1) / n)


def find_seeds(effect: float, error: float = SIGNIFICANCE) -> int | None:
    """Return the seeds at which an effect is decided that is always this large; None: too many.

    >>> find_seeds(0.5), find_seeds(1.0), find_seeds(5.0), find_seeds(0.0)
    (45, 14, 5, None)
    """
    wanted = log(1 / error)
    found = (n for n in range(2, MOST_SEEDS + 1) if _log_factor(effect, n) >= wanted)
    return next(found, None)


def _log_factor(effect: float, n: int) -> float:
    """Return the logarithm of the Bayes factor at n seeds of an effect, the mean by the sd."""
    x = n * effect**2 / (n - 1)  # T² by its degrees of freedom
    grown = log1p(n) if x == inf else log1p(x) - log1p(x / (1 + n))
    return n / 2 * grown - log1p(n) / 2

"""Whether lower or higher values of a metric are better, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Literal

Better = Literal["lower", "higher"]
"""Which values of a metric are better."""


def sign(better: Better) -> int:
    """Return 1 if lower values are better, else -1. Sorted by sign times value, the best is first.

    >>> sorted([0.2, 0.9, 0.5], key=lambda accuracy: sign("higher") * accuracy)
    [0.9, 0.5, 0.2]
    """
    return 1 if better == "lower" else -1


def is_better(value: float, than: float, better: Better) -> bool:
    """Return whether `value` is better than another one; equal values are not."""
    return sign(better) * value < sign(better) * than


def best(values: Iterable[float], better: Better) -> float:
    """Return the best of the values, of which there is at least one.

    >>> best([0.2, 0.9], "lower"), best([0.2, 0.9], "higher")
    (0.2, 0.9)
    """
    return min(values, key=lambda value: sign(better) * value)


def worst_value(better: Better) -> float:
    """Return the infinity that is worse than every number."""
    return sign(better) * inf

"""Which trial of a search is the best, and which trials are ranked at all.

More seeds come first: who has them stayed longer in the race. Means over other seeds cannot be
compared, as some seeds are easy for everybody. Among equals the best value comes first, and of
equal values the smaller number. The record sorts by columns of the same order, which it fills by
`cost`.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Final, Protocol, TypeVar

from eigensweep.common.direction import Better, sign
from eigensweep.results.trial_result import Result

RANKED: Final[frozenset[str]] = frozenset({"completed", "reused"})
"""The outcomes whose value counts in the ranking."""

OBJECTIVE: Final = "objective"
"""Key, in the metrics of a rung report, of the value that trials are ranked by: the best so far."""

UNRANKED: Final = inf
"""The cost of a trial that is not ranked, or has no value."""


class Ranked(Protocol):
    """A trial, as this room sees it."""

    @property
    def number(self) -> int: ...
    @property
    def arm(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def result(self) -> Result | None: ...
    @property
    def error(self) -> str | None: ...


RankedT = TypeVar("RankedT", bound=Ranked)


def cost(value: float | None, better: Better) -> float:
    """Return by what values are sorted, the best first; `UNRANKED` for none.

    >>> cost(0.9, "higher"), cost(None, "lower")
    (-0.9, inf)
    """
    return UNRANKED if value is None else sign(better) * value


def rank(trial: Ranked, better: Better) -> tuple[int, float, int] | None:
    """Return a key by which the trials of one search are sorted, the best first; None without one.

    It consists of the number of seeds, negated, the cost, and the trial's number.
    """
    result = trial.result
    if trial.state not in RANKED or result is None or result.value is None:
        return None
    return -result.replicates, cost(result.value, better), trial.number


def find_best(trials: Iterable[RankedT], better: Better) -> RankedT | None:
    """Return the first trial of the ranking, None if none is ranked."""
    keys = ((rank(trial, better), trial) for trial in trials)
    return min(((key, t) for key, t in keys if key), key=lambda each: each[0], default=(0, None))[1]

"""The brackets of successive halving: when each begins to stop trials, and which trials it gets.

Source: Li et al., "Hyperband", JMLR 18 (2018), algorithm 1, for the share of each bracket; Li et
al., "A system for massively parallel hyperparameter tuning", MLSys 2020, for halving that does not
wait.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

MOST_BRACKETS = 5
"""Brackets of Hyperband unless a spec says how many."""


@dataclass(frozen=True)
class Brackets:
    """Brackets of which each begins `factor` times later than the one before.

    >>> brackets = Brackets(first=10, last=90, factor=3)
    >>> brackets.begins, brackets.weights
    ([10, 30, 90], [9, 5, 3])
    >>> [brackets.choose(number) for number in range(8)]
    [0, 1, 0, 2, 0, 1, 0, 2]
    """

    first: int
    """Step at which the first bracket begins to stop trials."""
    last: int
    """Step at which trials end by themselves."""
    factor: int
    most: int | None = None
    """At most so many; None: as many as there is room for, up to `MOST_BRACKETS`."""
    _places: list[int] = field(default_factory=list, repr=False, compare=False)
    _given: Counter[int] = field(default_factory=Counter, repr=False, compare=False)

    @cached_property
    def begins(self) -> list[int]:
        """The step at which each bracket begins to stop trials."""
        rungs = [self.first]
        while rungs[-1] * self.factor <= self.last:
            rungs.append(rungs[-1] * self.factor)
        return rungs[: self.most or MOST_BRACKETS]

    @cached_property
    def weights(self) -> list[int]:
        """How many trials each bracket gets, in proportion, so that all cost about the same."""
        count = len(self.begins)
        powers = range(count - 1, -1, -1)
        return [math.ceil(count * self.factor**power / (power + 1)) for power in powers]

    @cached_property
    def share(self) -> float:
        """The share of all steps that trials train if each rung stops all that it may.

        >>> round(Brackets(first=10, last=90, factor=3, most=1).share, 3)
        0.259
        """
        trained = [self._mean_steps(begin) for begin in self.begins]
        pairs = zip(trained, self.weights, strict=True)
        return sum(steps * weight for steps, weight in pairs) / sum(self.weights) / self.last

    def list_rungs(self, begin: int) -> list[int]:
        """Return the steps at which the bracket that begins there may stop a trial."""
        rungs = []
        while begin < self.last:
            rungs.append(begin)
            begin *= self.factor
        return rungs

    def _mean_steps(self, begin: int) -> float:
        rungs = self.list_rungs(begin)
        ends = zip([0, *rungs], [*rungs, self.last], strict=True)
        return sum((to - since) / self.factor**place for place, (since, to) in enumerate(ends))

    def choose(self, number: int) -> int:
        """Return the bracket of a trial: the one that lags most behind its share."""
        while len(self._places) <= number:
            total = len(self._places) + 1
            lags = [
                total * weight / sum(self.weights) - self._given[place]
                for place, weight in enumerate(self.weights)
            ]
            self._places.append(lags.index(max(lags)))
            self._given[self._places[-1]] += 1
        return self._places[number]

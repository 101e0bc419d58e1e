"""Which experiments share a driver's process, and whether there is room for one more driver.

A process takes about 350 MB, an experiment in it a few. So several small experiments may share one.
They share Python's lock, too: while one of them computes, the others wait. That is why only those
are taken that a driver has little to do for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.shared.messages import SpecJson

MOST_TRIALS: Final = 100
"""An experiment is small if it has no more trials than that."""


def is_small(content: SpecJson) -> bool:
    """Return whether an experiment may share a driver: a few trials, each in its own process.

    A Gaussian process computes for long before each trial and loads torch, so it does not share.
    Nor do trials with lanes: their driver may have to measure first.
    """
    try:
        spec = ExperimentSpec.from_stored(content)
        trials = spec.trial_count()
    except ValueError:  # its driver will say why it cannot be read
        return False
    is_light = spec.search.method != "gp" and spec.resources.lanes is None
    return is_light and trials is not None and trials <= MOST_TRIALS


@dataclass(frozen=True)
class Seat:
    """An experiment that has a driver."""

    experiment: str
    process: str
    """Name of the driver's process; those who share it have the same one."""
    shares: bool
    """Whether others may have the same process."""
    is_over: bool = False
    """Whether it only reports and delivers; it takes no place in the queue."""


@dataclass(frozen=True)
class DriverPlaces:
    """How many experiments a driver may have, and how many drivers there may be."""

    experiments: int = 1
    """Small experiments in one driver at once, at most."""
    drivers: int | None = None
    """Drivers at once, at most; None: as many as there are experiments."""

    def has_room(self, seats: Sequence[Seat], starting: int, *, shares: bool) -> bool:
        """Return whether an experiment may begin now.

        `starting` experiments are under way and have no driver at this moment; they come first.

        >>> seats = [Seat("a", "p", True), Seat("b", "q", False)]
        >>> DriverPlaces(2, 2).has_room(seats, 0, shares=False)
        False
        >>> DriverPlaces(2, 2).has_room(seats, 0, shares=True)
        True
        """
        if self.drivers is None:
            return True
        left = self.drivers - starting - len({s.process for s in seats if not s.is_over})
        can_share = shares and not starting and self.find_company(seats) is not None
        return left > 0 or can_share

    def find_company(self, seats: Sequence[Seat]) -> str | None:
        """Return an experiment whose driver takes one more, where most are; None: there is none.

        >>> seats = [Seat("a", "p", True), Seat("b", "q", True), Seat("c", "q", True)]
        >>> DriverPlaces(3).find_company(seats), DriverPlaces(2).find_company(seats)
        ('b', 'a')
        """
        aboard: dict[str, list[Seat]] = {}
        for seat in seats:
            aboard.setdefault(seat.process, []).append(seat)
        open_ones = [
            group
            for group in aboard.values()
            if len(group) < self.experiments
            and all(seat.shares for seat in group)
            and not all(seat.is_over for seat in group)
        ]
        return max(open_ones, key=len)[0].experiment if open_ones else None

"""Time pieces of work in turns: all of them in every round, in an order that is drawn anew."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

from bench.gpu.sections import Notes, wait_for

Work = Callable[[float], int]
"""Takes training steps for about so many seconds, at least one, and returns how many."""

TURN_SECONDS = 0.15
"""About so long a piece of work runs in each round."""

QUICK_SECONDS = 0.02
"""The same in a quick run."""

LEAST_ROUNDS = 2
"""So many rounds are measured, however long they take."""


class Repeated:
    """A function that takes steps, called for about so long as it is asked to."""

    def __init__(self, take: Callable[[int], object], device: str, most: int = 200) -> None:
        """Wrap `take(steps)`; the device's time counts."""
        self._take, self._device, self._most = take, device, most
        self._seconds = math.inf
        """Of one step, as it was the last time."""

    def __call__(self, seconds: float) -> int:
        steps = max(1, min(self._most, int(seconds / self._seconds)))
        began = time.perf_counter()
        self._take(steps)
        wait_for(self._device)
        self._seconds = (time.perf_counter() - began) / steps
        return steps


class Later:
    """Work that is made when it is first called, so that a failure to make it is its own."""

    def __init__(self, make: Callable[[], Work]) -> None:
        self._make = make
        self.work: Work | None = None
        """What was made, None before the first call."""

    def __call__(self, seconds: float) -> int:
        if self.work is None:
            self.work = self._make()
        return self.work(seconds)


def repeat(step: Callable[[], object], device: str) -> Repeated:
    """Return the work of calling `step` again and again."""

    def take(steps: int) -> None:
        for _ in range(steps):
            step()

    return Repeated(take, device)


def time_in_turns(
    works: Mapping[str, Work],
    notes: Notes,
    part: str,
    seconds: float,
    rounds: int | None = None,
) -> dict[str, list[float]]:
    """Return milliseconds of a step of each piece of work in each round, by its name.

    Two rounds before the first are not counted, in a quick run one: in one of them kernels are
    compiled and graphs are captured. No round begins after `seconds`. Work that fails once is left
    out of the result.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    order, began = random.Random(0), time.perf_counter()
    device, rounds = notes.plan.device, min(rounds or notes.plan.rounds, notes.plan.rounds)
    turn, uncounted = (QUICK_SECONDS, 1) if notes.plan.quick else (TURN_SECONDS, 2)
    for number in range(-uncounted, rounds):
        if number >= LEAST_ROUNDS and time.perf_counter() - began > seconds:
            break
        for name in order.sample(list(works), len(works)):
            wait_for(device)
            milliseconds = notes.attempt(
                f"{part}: {name}", partial(_time, works[name], turn, device)
            )
            if milliseconds is None:
                times.pop(name, None)
            elif number >= 0:
                times[name].append(milliseconds)
    return times


def _time(work: Work, seconds: float, device: str) -> float:
    began = time.perf_counter()
    steps = work(seconds)
    wait_for(device)
    return 1e3 * (time.perf_counter() - began) / steps


def ratio(above: list[float], below: list[float]) -> float:
    """Return the median of the ratios within rounds.

    >>> ratio([8.0, 2.0, 9.0], [4.0, 2.0, 3.0])
    2.0
    """
    return median(a / b for a, b in zip(above, below, strict=True))

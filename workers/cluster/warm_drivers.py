"""Drivers that have loaded everything and wait for an experiment: who gets one, and who does not.

A driver that has finished an experiment waits for the next one. On a Ray of somebody else's it has
no processes for trials, and ends by itself if the service is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

QUIET_SECONDS: Final = 2.0
"""A driver that had an experiment waits so long before it gets new processes for trials: if the
next experiment is there already, these would be loaded twice."""

LOOK_SECONDS: Final = 60.0
"""Seconds between two looks whether a driver that waits is alive and has its processes. Ray ends
processes that wait while trials have all cores."""
IDLE_SECONDS: Final = 8 * 3600.0
"""Where there was no experiment for so long, nothing waits any more, until there was another."""

DRIVER_BYTES: Final = 370_000_000
"""Memory of a driver that waits."""
BYTES: Final = DRIVER_BYTES + 420_000_000
"""The same with what waits for its first trials: a process of 260 MB that they are forked from, and
two thin ones of 80 MB each."""
MOST_OF_MEMORY: Final = 0.25
"""Where all that wait would take a larger part of the memory, none waits."""


class Driver(Protocol):
    """A driver's process."""

    def is_loading(self) -> bool:
        """Return whether it still loads for the first time; it may have an experiment even then."""

    def begin(self) -> bool:
        """Let it get ready for an experiment; return False if it is of no use any more."""

    def rest(self) -> bool:
        """Let it wait after an experiment; return False if it should not have another one."""

    def load_trials(self) -> bool:
        """Let it have what is missing of the processes for the first trials of its next experiment.

        Return False if it is of no use any more.
        """

    def end(self) -> None:
        """End its process at once."""


D = TypeVar("D", bound=Driver)


@dataclass
class _Waiting(Generic[D]):
    """A driver that waits."""

    driver: D
    look_at: float
    """Time, by the pool's clock, of the next look at it and its processes for trials."""


@dataclass
class WarmDrivers(Generic[D]):
    """At most `most` drivers that wait. Threads may share it."""

    most: int
    make: Callable[[], D]
    """Returns a driver that begins to load."""
    clock: Callable[[], float] = time.monotonic
    _waiting: list[_Waiting[D]] = field(default_factory=list)
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _used_at: float = 0.0
    """Time of the last beginning or end of an experiment."""

    def __post_init__(self) -> None:
        self._used_at = self.clock()

    def take(self) -> D | None:
        """Return a driver that waits and has the code of now; None: a fresh one is needed."""
        self._used_at = self.clock()
        while True:
            with self._turn:
                if not self._waiting:
                    return None
                found = self._waiting.pop().driver
            # One that loads now cannot answer yet. It loads the code of now.
            if found.is_loading() or found.begin():
                return found
            logger.info(
                "a driver that waited does not answer or has older code, so another one is started"
            )
            found.end()

    def give_back(self, driver: D) -> None:
        """Let a driver that has finished its experiment wait for another, or end it."""
        self._used_at = self.clock()
        if self._has_room() and driver.rest():
            with self._turn:
                if len(self._waiting) < self.most:
                    self._waiting.append(_Waiting(driver, self.clock() + QUIET_SECONDS))
                    return
        driver.end()

    def fill(self, working: int) -> None:
        """Start what is missing, or end what nobody needed for long; call it regularly.

        `working` is how many drivers have an experiment: they will wait after it, and nothing is
        loaded beside their trials.
        """
        now = self.clock()
        with self._turn:
            if not working and now >= self._used_at + IDLE_SECONDS:
                while self._waiting:
                    self._waiting.pop().driver.end()
                return
            for each in [] if working else list(self._waiting):
                if now >= each.look_at:
                    self._look(each, now)
            if len(self._waiting) + working < self.most:
                self._waiting.append(_Waiting(self.make(), now + LOOK_SECONDS))

    def end_waiting(self) -> None:
        """End all that wait."""
        with self._turn:
            while self._waiting:
                self._waiting.pop().driver.end()

    def _look(self, each: _Waiting[D], now: float) -> None:
        """Let a driver have what it misses, or end one that is of no use any more."""
        each.look_at = now + LOOK_SECONDS
        if not each.driver.load_trials():
            self._waiting.remove(each)
            each.driver.end()

    def _has_room(self) -> bool:
        with self._turn:
            return len(self._waiting) < self.most


def count_that_fit(wanted: int, memory: int, each: int = BYTES) -> int:
    """Return how many drivers may wait where there are so many bytes of memory: all, or none.

    `each` is the bytes of a warm driver with its preloaded trial processes.
    """
    if wanted * each <= memory * MOST_OF_MEMORY:
        return wanted
    logger.info(
        "no driver is kept ready: %d would take %.1f GB, and there are %.1f GB "
        "(EIGENSWEEP_WARM_DRIVERS)",
        wanted,
        wanted * each / 1e9,
        memory / 1e9,
    )
    return 0

"""Answers that cost much to find, kept for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class TimedCache(Generic[T]):
    """A cache of one answer, whose time to live grows with the time that it took to find.

    Many threads may ask; one of them finds the answer, and the others wait for it.
    """

    def __init__(
        self,
        find: Callable[[], T],
        *,
        seconds: float,
        share: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Find nothing yet.

        An answer lives for `seconds` at least, and so long that `find` takes no more than `share`
        of the time.
        """
        self._find, self._seconds, self._share, self._clock = find, seconds, share, clock
        self._found: T | None = None
        self._not_before = float("-inf")
        self._turn = threading.Lock()

    def read(self) -> T:
        """Return the answer; what `find` raises comes through, and the next call tries again."""
        with self._turn:
            if self._found is None or self._clock() >= self._not_before:
                began = self._clock()
                self._found = self._find()
                ended = self._clock()
                self._not_before = ended + max(self._seconds, (ended - began) / self._share)
            return self._found

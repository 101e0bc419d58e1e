"""Answers that cost much to find, which are shown again for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Remembered(Generic[T]):
    """Finds something again when the last answer is old: the longer it took, the older.

    Many threads may ask; one of them finds it, and the others wait for its answer.
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

        An answer is shown again for `seconds` at least, and so long that `find` takes no more than
        `share` of the time.
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

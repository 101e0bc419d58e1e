"""Answers that many requests ask for at once or again and again, found once for all of them.

Runs in the service's process.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from eigensweep.service.api.answers.writers import BusyError

T = TypeVar("T")

PATIENCE_SECONDS: Final = 5.0
"""How long a look waits for the one before, which may never end: a database may hang."""


class SingleFlight(Generic[T]):
    """What `find` returns, found in a thread: one call for all requests that wait for it.

    Nobody gets an answer that was begun before. Requests that come while `find` runs wait for the
    next call, but for `PATIENCE_SECONDS` at most: the one before may never end.
    """

    def __init__(self, find: Callable[[], T]) -> None:
        self._find = find
        self._begun: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def ask(self) -> T:
        """Return an answer that is looked for from now on, or a little later.

        Raises:
            Exception: whatever `find` raises.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._look(self._begun))
        return await asyncio.shield(self._next)  # a request that is given up leaves it to others

    async def _look(self, before: asyncio.Task[T] | None) -> T:
        if before is not None and not before.done():
            await asyncio.wait([before], timeout=PATIENCE_SECONDS)
        self._begun, self._next = self._next, None
        return await run_in_threadpool(self._find)


class TimedCache(Generic[T]):
    """A cache of one answer, whose time to live grows with the time that it took to find.

    Many threads may ask. One of them finds the answer; the others have the one before meanwhile.
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
        """Return the answer; what `find` raises comes through, and the next call tries again.

        Raises:
            BusyError: if there is none yet, and another thread has looked for it for seconds.
        """
        patience = PATIENCE_SECONDS if self._found is None else 0.0
        if not self._turn.acquire(timeout=patience):
            if self._found is None:
                raise BusyError("this is being counted for the first time; ask again later")
            return self._found
        try:
            if self._found is None or self._clock() >= self._not_before:
                began = self._clock()
                self._found = self._find()
                ended = self._clock()
                self._not_before = ended + max(self._seconds, (ended - began) / self._share)
            return self._found
        finally:
            self._turn.release()

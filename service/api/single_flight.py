"""A question that many requests ask at once, answered for all who wait.

Runs in the service's process, in the thread that serves all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from starlette.concurrency import run_in_threadpool

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """What `find` returns, found in a thread: one call for all requests that wait for it.

    Nobody gets an answer that was begun before. Requests that come while `find` runs wait for the
    next call.
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
        if before is not None:
            with suppress(Exception):  # told to those who asked
                await before
        self._begun, self._next = self._next, None
        return await run_in_threadpool(self._find)

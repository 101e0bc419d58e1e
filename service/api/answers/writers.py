"""Threads of their own for requests that write. Runs in the service's process.

A write waits while another process holds the lock of the record, for seconds. So writes wait here,
and what only reads, the check of tokens included, has the server's other threads to itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

T = TypeVar("T")

THREADS: Final = 6
"""Writes that are worked on at once; they are committed together (`GroupCommit`)."""
MOST_WAITING: Final = 200
"""Writes that wait or are worked on; one more is refused, and may come again."""


class BusyError(RuntimeError):
    """So much is being written, or counted, that the request is better sent again later."""


class Writers:
    """Threads that write, and a queue before them that has an end."""

    def __init__(self, threads: int = THREADS, most: int = MOST_WAITING) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="write")
        self._most = most
        self._waiting = 0

    async def run(self, act: Callable[[], T]) -> T:
        """Return what `act` returns in one of the threads.

        Raises:
            BusyError: if too many wait already.
            Exception: whatever `act` raises.
        """
        if self._waiting >= self._most:
            raise BusyError(
                f"{self._waiting} requests wait to be written into the record; nothing was "
                "changed, try again soon"
            )
        self._waiting += 1
        try:
            context = copy_context()
            return await asyncio.get_running_loop().run_in_executor(self._pool, context.run, act)
        finally:
            self._waiting -= 1


WRITERS: Final = Writers()
"""Those of this process."""

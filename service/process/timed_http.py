"""HTTP with time limits: who sends slowly, or does not read, holds no connection for long.

Uvicorn has none for a request: `timeout_keep_alive` ends where its first byte arrives, and
`limit_concurrency` refuses requests only after they have arrived.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"the request did not come whole in time\n"
)


def choose_most(files: int) -> int:
    """Return how many connections may be open where a process may open so many files.

    The rest is for all else.

    >>> [choose_most(files) for files in (64, 256, 1024, 1_000_000)]
    [16, 192, 768, 10000]
    """
    return max(8, min(files * 3 // 4, files - 48, 10_000))


class TimedHttp(H11Protocol):
    """Closes connections whose request does not come whole, or whose answer is not read, in time.

    A request that has come may be answered for as long as that takes, as streams of events are.
    Where there are too many connections, the one closes that has waited longest for a request.
    """

    head_seconds = 30.0
    """From the beginning of a connection, or the last answer, until all headers have come."""
    body_seconds = 30.0
    """From then on until its body is whole."""
    answer_seconds = 60.0
    """How long a client may read nothing while an answer waits for it."""
    most_connections = choose_most(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._state: object = None
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        super().connection_made(transport)
        self._watch()
        if len(self.connections) > self.most_connections:
            open_ones = [each for each in self.connections if not each.transport.is_closing()]
            waiting = [each for each in open_ones if getattr(each, "_late", None)]
            if len(open_ones) <= self.most_connections:
                return
            oldest = min(waiting, key=lambda each: each._late.when())  # type: ignore[union-attr]
            oldest.transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(self.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._unread)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        _cancel(self._late)
        _cancel(self._unread)

    def _watch(self) -> None:
        """Begin the time limit of what is missing of a request, or end it where nothing is."""
        state = self.conn.their_state
        if state is self._state:
            return
        self._state = state
        _cancel(self._late)
        self._late = None
        if state in (h11.IDLE, h11.SEND_BODY) and not self.transport.is_closing():
            seconds = self.head_seconds if state is h11.IDLE else self.body_seconds
            self._late = self.loop.call_later(seconds, self._end_late)

    def _end_late(self) -> None:
        if self.cycle is None or not self.cycle.response_started:
            self.transport.write(LATE)
        self.transport.close()


class TimedHttpOfArtifacts(TimedHttp):
    """The same for bodies that are large."""

    body_seconds = 600.0


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()

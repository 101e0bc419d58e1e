"""What happens in an experiment, as a stream of server-sent events read from the record."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Final

from fastapi.sse import ServerSentEvent
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from eigensweep.service.record.database import is_away
from eigensweep.service.record.queries import Queries
from eigensweep.service.record.tables import Event
from eigensweep.workers.shared.states import ENDED

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.3
LONGEST_QUIET: Final = 2.0
"""A stream looks for itself after so long: a number may be handed out before it is seen."""
PIECE: Final = 500
END_KINDS: Final = frozenset(f"experiment.{state}" for state in ENDED)


class Tailer:
    """Tails the events for every stream with one question to the database in `INTERVAL` seconds."""

    def __init__(self, record: Queries) -> None:
        self._record = record
        self._lock = asyncio.Lock()
        self._newest = 0
        self._asked = -INTERVAL
        self.closing = threading.Event()
        """Set it, from any thread, to end all streams."""

    async def stream(self, id: str, after: int) -> AsyncIterator[ServerSentEvent]:
        """Yield the experiment's events after number `after`, as they come, until its end."""
        seen, looked = -1, -LONGEST_QUIET
        was_over: bool | None = None
        while not self.closing.is_set():
            try:
                if was_over is None:
                    was_over = (await run_in_threadpool(self._record.row, id)).state in ENDED
                newest = await self._newest_event()
                if newest == seen and time.monotonic() - looked < LONGEST_QUIET:
                    await asyncio.sleep(INTERVAL)
                    continue
                events = await run_in_threadpool(self._record.events, id, after, PIECE)
            except SQLAlchemyError as error:
                if not is_away(error):
                    raise
                await asyncio.sleep(LONGEST_QUIET)
                continue
            for event in events:
                yield served(event)
                after = event.id
                if event.kind in END_KINDS:
                    return
            if was_over and not events:
                return  # resumed after the end event
            if len(events) < PIECE:
                seen, looked = newest, time.monotonic()

    async def _newest_event(self) -> int:
        async with self._lock:
            if time.monotonic() - self._asked >= INTERVAL:
                self._newest = await run_in_threadpool(self._record.newest_event)
                self._asked = time.monotonic()
            return self._newest


def served(event: Event) -> ServerSentEvent:
    """Return an event of the record as it goes over the wire."""
    data = {**event.data, "at": event.at}
    return ServerSentEvent(id=str(event.id), event=event.kind, data=data)

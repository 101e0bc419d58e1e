"""Streams the events of an experiment from the record, as server-sent events.

Runs in the service's process.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, Final, TypeVar

from fastapi.sse import ServerSentEvent
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from eigensweep.service.record.database import is_away
from eigensweep.service.record.errors import ExperimentNotFoundError
from eigensweep.service.record.queries import Queries
from eigensweep.service.record.tables import Event
from eigensweep.workers.shared.states import ENDED

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL: Final = 0.3
LONGEST_QUIET: Final = 2.0
"""Seconds after which a stream asks for its own events even if no newer number was seen: an event
becomes visible when it is committed, perhaps after one of a higher number."""
LONGEST_TRUST: Final = 2.0
"""Seconds after which a stream asks again whether its caller is known."""
PIECE: Final = 500
"""Most events in one read."""
DELETED: Final = "experiment.delete_requested"
END_KINDS: Final = frozenset(f"experiment.{state}" for state in ENDED)


class Tailer:
    """Follows the record for all streams; what several ask within `INTERVAL` is read once."""

    def __init__(self, record: Queries) -> None:
        self._record = record
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self.closing = threading.Event()
        """Set it, from any thread, to end all streams."""

    async def stream(
        self, id: str, after: int, caller: Hashable, is_known: Callable[[], bool]
    ) -> AsyncIterator[ServerSentEvent]:
        """Yield the experiment's events after number `after`, as they come, until its end.

        `is_known` says whether the caller still gets anything here; if not, the stream ends. For
        streams with an equal `caller` it says the same.
        """
        # A loop of our own: tenacity repeats a call, and this is a generator between two events.
        seen, looked = -1, -LONGEST_QUIET
        may_be_over, is_over = True, False
        trusted = time.monotonic()
        while not self.closing.is_set():
            try:
                if time.monotonic() - trusted >= LONGEST_TRUST:
                    if not await self._share(("known", caller), is_known):
                        return
                    trusted = time.monotonic()
                if may_be_over:  # read before the events: what was done until then is among them
                    is_over = (await run_in_threadpool(self._record.row, id)).state in ENDED
                newest = await self._share("newest", self._record.newest_event)
                is_quiet = newest == seen and time.monotonic() - looked < LONGEST_QUIET
                if is_quiet and not is_over:
                    await asyncio.sleep(INTERVAL)
                    continue
                read = partial(self._record.events, id, after, PIECE)
                # What others have read counts only if they knew as much when they began.
                events = await self._share(("events", id, after, newest, is_over), read)
            except ExperimentNotFoundError:
                return  # it was deleted
            except SQLAlchemyError as error:
                if not is_away(error):
                    raise
                await asyncio.sleep(LONGEST_QUIET)
                continue
            for event in events:
                yield to_server_sent(event)
                after = event.id
            if is_over and not events:
                return
            may_be_over = is_over or any(event.kind in END_KINDS for event in events)
            may_be_over = may_be_over or bool(events and events[-1].kind == DELETED)
            if len(events) < PIECE:
                seen, looked = newest, time.monotonic()

    async def _share(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns, or what another stream was answered to the same `key`."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.ensure_future(run_in_threadpool(find))
            task.add_done_callback(lambda _: self._forget_later(key))
        found: T = await asyncio.shield(task)  # a stream that is closed leaves it to the others
        return found

    def _forget_later(self, key: Hashable) -> None:
        asyncio.get_running_loop().call_later(INTERVAL, self._shared.pop, key, None)


def to_server_sent(event: Event) -> ServerSentEvent:
    """Return an event of the record as a server-sent event."""
    data = {**event.data, "at": event.at}
    return ServerSentEvent(id=str(event.id), event=event.kind, data=data)

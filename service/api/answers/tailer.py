"""Streams the events of an experiment from the record, as server-sent events.

What streams ask at about the same time is read and written as text once for all of them, and each
stream sends all the events that it has not sent yet in one piece: to write and send 100 events one
by one to 200 streams takes seconds. Runs in the service's process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from eigensweep.protocol.states import ENDED, ExperimentState
from eigensweep.service.record.errors import ExperimentNotFoundError
from eigensweep.service.record.sql.database import is_away
from eigensweep.service.record.sql.tables import EventRow
from eigensweep.service.record.views.queries import Queries

logger = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL: Final = 0.3
LONGEST_QUIET: Final = 2.0
"""Seconds after which a stream asks for its own events even if no newer number was seen: an event
becomes visible when it is committed, perhaps after one of a higher number."""
LONGEST_TRUST: Final = 2.0
"""Seconds after which a stream asks again whether its caller is known."""
LONGEST_SILENCE: Final = 15.0
"""Seconds after which a stream without events sends a comment, which keeps its connection open."""
PIECE: Final = 500
"""Most events in one read."""
DELETED: Final = "experiment.delete_requested"
END_KINDS: Final = frozenset(f"experiment.{state}" for state in ENDED)


@dataclass(frozen=True)
class Piece:
    """Events of an experiment that follow one another, as a stream sends them."""

    text: bytes
    count: int
    last: int
    """The number of the last one; where there is none, that of the last one before."""
    may_be_end: bool
    """Whether one of them says that the experiment is over, or is being deleted."""


class Tailer:
    """Follows the record for all streams; what several ask within `INTERVAL` is read once."""

    def __init__(self, record: Queries) -> None:
        self._record = record
        self._shared: dict[Hashable, asyncio.Task[Any]] = {}
        self.closing = threading.Event()
        """Set it, from any thread, to end all streams."""

    async def find_state(self, id: str, after: int) -> ExperimentState:
        """Return the state of an experiment, as it is after its event of number `after`.

        Raises:
            ExperimentNotFoundError: if there is none of this id.
        """
        # Whoever has seen an event asks later than it came: so a state that is older than the
        # event is never taken from another stream.
        return await self._share(("state", id, after), partial(self._record.state, id))

    async def stream(
        self, id: str, after: int, caller: Hashable, is_known: Callable[[], bool]
    ) -> AsyncIterator[bytes]:
        """Yield the experiment's events after number `after`, as they come, until its end.

        They come as text of server-sent events, several at a time. `is_known` says whether the
        caller still gets anything here; if not, the stream ends. For streams with an equal
        `caller` it says the same.
        """
        # A loop of our own: tenacity repeats a call, and this is a generator between two events.
        seen, looked = -1, -LONGEST_QUIET
        may_be_over, is_over, is_leaving = True, False, False
        trusted = told = time.monotonic()
        while not self.closing.is_set():
            if time.monotonic() - told >= LONGEST_SILENCE:
                yield KEEPALIVE_COMMENT
                told = time.monotonic()
            try:
                if time.monotonic() - trusted >= LONGEST_TRUST:
                    if not await self._share(("known", caller), is_known):
                        return
                    trusted = time.monotonic()
                if may_be_over:  # read before the events: what was done until then is among them
                    state = await self.find_state(id, after)
                    is_over, is_leaving = state in ENDED, state == "deleting"
                newest = await self._share("newest", self._record.newest_event)
                is_quiet = newest == seen and time.monotonic() - looked < LONGEST_QUIET
                if is_quiet and not is_over:
                    await asyncio.sleep(INTERVAL)
                    continue
                read = partial(self._read, id, after)
                # What others have read counts only if they knew as much when they began.
                piece = await self._share(("events", id, after, newest, is_over), read)
            except ExperimentNotFoundError:
                return  # it was deleted
            except SQLAlchemyError as error:
                if not is_away(error):
                    raise
                await asyncio.sleep(LONGEST_QUIET)
                continue
            if piece.count:
                yield piece.text
                told = time.monotonic()
            elif is_over:
                return
            after = piece.last
            may_be_over = is_over or is_leaving or piece.may_be_end
            if piece.count < PIECE:
                seen, looked = newest, time.monotonic()

    def _read(self, id: str, after: int) -> Piece:
        """Return the experiment's events after number `after`, at most `PIECE` of them."""
        events = self._record.events(id, after, PIECE)
        may_be_end = any(event.kind in END_KINDS for event in events)
        return Piece(
            text=b"".join(to_server_sent(event) for event in events),
            count=len(events),
            last=events[-1].id if events else after,
            may_be_end=may_be_end or bool(events and events[-1].kind == DELETED),
        )

    async def _share(self, key: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns, or what another stream was answered to the same `key`."""
        task = self._shared.get(key)
        if task is None:
            task = self._shared[key] = asyncio.ensure_future(run_in_threadpool(find))
            later = partial(task.get_loop().call_later, INTERVAL, self._shared.pop, key, None)
            task.add_done_callback(lambda _: later())
        return await asyncio.shield(task)  # a stream that is closed leaves it to the others


def to_server_sent(event: EventRow) -> bytes:
    """Return an event of the record as the text of a server-sent event."""
    data = json.dumps({**event.data, "at": event.at})
    return format_sse_event(data_str=data, event=event.kind, id=str(event.id))

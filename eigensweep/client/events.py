"""The events of an experiment, read from the service's stream of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

import httpx2

from eigensweep.client.connection import (
    RETRY_SECONDS,
    Connection,
    JsonObject,
    outlast_restart,
)
from eigensweep.protocol.states import ENDED


@dataclass(frozen=True)
class Event:
    """Something that happened to an experiment or one of its trials."""

    id: str
    kind: str
    """`experiment.started`, `trial.report`, `trial.completed`, ..."""
    data: JsonObject

    @property
    def is_end(self) -> bool:
        """Whether the experiment is over. More follows only if it is taken up again."""
        subject, _, what = self.kind.partition(".")
        return subject == "experiment" and what in ENDED


def read_events(connection: Connection, path: str, after: str | None = None) -> Iterator[Event]:
    """Yield the events of the experiment at a path of the API; see `Experiment.events`."""
    last, may_be_over = after, False
    while True:
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {})
        response = outlast_restart(partial(connection.open, f"{path}/events", headers))
        with closing(response), suppress(httpx2.TransportError):  # if it breaks, open it again
            for message in httpx2.EventSource(response, max_event_size=None):
                last = message.id or last
                event = Event(message.id, message.event, json.loads(message.data or "{}"))
                may_be_over = event.is_end
                yield event
        is_over = outlast_restart(partial(connection.get, path))["state"] in ENDED
        if is_over and may_be_over:
            return
        may_be_over = is_over  # its last event may lie before `after`
        time.sleep(RETRY_SECONDS)

"""Takes all events of the trials' processes that are ready at once, for Tune's loop.

Tune asks Ray for one event at a time, with every future that there is, in a new random order. With
a thousand trials that takes longer than to handle the event. Here the loop takes all ready events
at once when events follow one another fast. It still handles one event a turn.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Final

import ray
from ray.air.execution import ResourceRequest
from ray.air.execution._internal.tracked_actor import TrackedActor

from eigensweep.workers.driver.memory_shortages import PatientActorManager
from eigensweep.workers.driver.trainable import StartArguments, give_order_alone

SOON: Final = 0.005
"""Seconds: an event that comes this fast was ready before the question, and others may be."""


class PromptActorManager(PatientActorManager):
    """Tune's manager of processes, which remembers the other ready events."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._ready: deque[Any] = deque()
        """Futures that are ready and were not handled; some may have been given up since."""

    def add_actor(
        self, cls: Any, kwargs: StartArguments, resource_request: ResourceRequest, **calls: Any
    ) -> TrackedActor:
        """Have a process started, with its order alone, once there is room for it."""
        return super().add_actor(cls, give_order_alone(kwargs), resource_request, **calls)

    def next(self, timeout: int | float | None = None) -> bool:
        """Handle one event within `timeout` seconds; return whether there was one."""
        is_killed = self._try_kill_actor()
        self._try_start_actors()
        if is_killed:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not self._ready and not self._wait(left):
                return False
            if self._handle(self._ready.popleft()):
                self._try_start_actors()
                return True

    def _wait(self, timeout: float | None) -> bool:
        """Wait for the next event and take all other ready ones; return whether there is any."""
        started = self._actor_state_events.get_futures()
        futures = [*self._resource_manager.get_resource_futures(), *started]
        futures += self._actor_task_events.get_futures()
        began = time.monotonic()
        ready, others = ray.wait(futures, num_returns=1, timeout=timeout)
        if ready and others and time.monotonic() < began + SOON:
            ready += ray.wait(others, num_returns=len(others), timeout=0)[0]
        self._ready.extend(ready)
        return bool(ready)

    def _handle(self, future: Any) -> bool:
        """Call the handler of an event; return whether it has one."""
        for events in (self._actor_state_events, self._actor_task_events):
            if future in events._tracked_futures:
                events.resolve_future(future)
                return True
        if future in self._resource_manager.get_resource_futures():
            self._handle_ready_resource_future()  # type: ignore[no-untyped-call]
        return False

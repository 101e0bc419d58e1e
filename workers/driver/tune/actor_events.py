"""Takes the events of the trials' processes for Tune's loop: all that are ready, at once.

Tune asks Ray for one event at a time, with every future that there is, in a new random order. With
a thousand trials that takes longer than to handle the event. Here the loop takes all ready events
at once when events follow one another fast. It still handles one event a turn.

Ray reports that it ended a process for lack of memory on its node as an `OutOfMemoryError`. Tune
handles the end of a process only if it is reported as a `RayActorError`. At any other error it
gives up all trials, and the driver would die with them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import ray
from ray.air.execution import ResourceManager, ResourceRequest
from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError

from eigensweep.workers.deaths import explain_shortage
from eigensweep.workers.driver.tune.trainable import choose_process, give_order_alone

SOON: Final = 0.005
"""Seconds: an event that comes this fast was ready before the question, and others may be."""


class MemoryShortageError(RayActorError):
    """A process was ended because its node had no memory left."""


class PromptActorManager(RayActorManager):
    """Tune's manager of processes, which remembers the other ready events."""

    def __init__(self, resource_manager: ResourceManager) -> None:
        super().__init__(resource_manager)
        self._room = resource_manager
        self._ready: deque[Any] = deque()
        """Futures that are ready and were not handled; some may have been given up since."""
        self._next_orders: dict[Any, dict[str, object]] = {}
        """What idle processes were given to train and have not heard of."""
        self._taken_over: list[Callable[[], None]] = []
        """Tell Tune that an idle process has taken a trial."""

    def add_actor(
        self,
        cls: Any,
        kwargs: Mapping[str, Any],
        resource_request: ResourceRequest,
        **calls: Any,
    ) -> Any:
        """Have a process started, with its order alone, once there is room for it."""
        order = {"config": give_order_alone(kwargs["config"])}
        return super().add_actor(choose_process(cls), order, resource_request, **calls)

    def schedule_actor_task(
        self,
        tracked_actor: Any,
        method_name: str,
        args: tuple[Any, ...] | None = None,
        kwargs: Any = None,
        on_result: Any = None,
        on_error: Any = None,
        _return_future: bool = False,
    ) -> Any:
        """Have a method of a process called; a reused process trains its next trial at once.

        Tune would first wait for it to say that it is ready for another trial (`reset`).
        """
        if method_name == "reset" and args:
            self._next_orders[tracked_actor] = give_order_alone(args[0])
            self._taken_over.append(partial(on_result, tracked_actor, True))
            return None
        order = self._next_orders.pop(tracked_actor, None)
        if method_name == "train" and order is not None:
            method_name, args = "train_next", (order,)
        return super().schedule_actor_task(
            tracked_actor, method_name, args, kwargs, on_result, on_error, _return_future
        )

    def next(self, timeout: int | float | None = None) -> bool:
        """Handle one event within `timeout` seconds; return whether there was one."""
        taken_over, self._taken_over = self._taken_over, []
        for begin in taken_over:
            begin()
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
        futures = [*self._room.get_resource_futures(), *started]
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
            if future in events.get_futures():
                events.resolve_future(future)
                return True
        if future in self._room.get_resource_futures():
            self._room.update_state()  # type: ignore[no-untyped-call]
            self._try_start_actors(max_actors=1)
        return False

    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        super()._actor_start_failed(tracked_actor, translate(exception))

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        super()._actor_task_failed(tracked_actor_task, translate(exception))


def translate(error: Exception) -> Exception:
    """Return the error that Tune understands."""
    if not isinstance(error, OutOfMemoryError):
        return error
    return MemoryShortageError(error_msg=explain_shortage(str(error)))

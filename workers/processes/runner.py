"""Trains one trial after another in one process, rung by rung, and returns reports. No Ray here.

A trial arrives as a plain dict, an `Order`. Importing this loads neither torch nor MLflow: that
takes seconds, and a process whose trials have slots in an engine never needs it.
"""

from __future__ import annotations

import json
import os
import platform
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from eigensweep.common import logs, traces
from eigensweep.common.machine import find_crowd
from eigensweep.protocol.code import check_build, check_code
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import Order, Place, Report
from eigensweep.store.checkpoints import Store
from eigensweep.store.upkeep import store_markers
from eigensweep.training import memory_limit
from eigensweep.training.devices import find_crowding, try_out
from eigensweep.training.errors import (
    cut_middle,
    is_of_the_device,
    is_of_the_disk,
    is_of_the_node,
    is_out_of_memory,
    is_out_of_threads,
)
from eigensweep.training.memory_limit import MemoryWatch
from eigensweep.training.printed import Printed

if TYPE_CHECKING:
    from eigensweep.training.attempt import Attempt
    from eigensweep.workers.processes.engine_actor import EngineSlot

REPORT = "report"
"""Key of a `Report`, as JSON text, in what `Runner.train` returns: what is no text, Tune takes
apart four times, and writes out for a log that nobody keeps."""

LOST = "lost"
"""Key beside it: whether the attempt was lost through no fault of the trial, which comes again."""


class Runner:
    """Trains the trial it was last given, one rung a call.

    Nothing that others share is touched before the first `train`.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        device: str = "cpu",
        node_id: str | None = None,
        take_slot: Callable[[Order], EngineSlot] | None = None,
    ) -> None:
        """Take an order as plain data, `cpu` or `cuda:ID`, and Ray's id of this node.

        Of the GPUs this process sees the one with that id alone. `take_slot` finds a slot in an
        engine for a trial that asks for one.
        """
        self.config = config
        """The order, as plain data."""
        self.attempt: Attempt | EngineSlot | None = None
        self.span: traces.OpenSpan | None = None
        """Of the attempt."""
        self.memory: MemoryWatch | None = None
        """Over this process, while it trains."""
        self.printed: Printed | None = None
        """What the attempt prints here."""
        self._place = Place(platform.node(), os.getpid(), device, node_id=node_id)
        self._device = device.partition(":")[0]
        """As PyTorch names it."""
        self._take_slot = take_slot
        self._leave: Callable[[], None] | None = None

    def train_next(self, config: Mapping[str, object]) -> dict[str, object]:
        """Take another trial, and return its first report, in one call of the driver's."""
        self.stop()
        self.config = config
        return self.train()

    def stop(self) -> None:
        """Leave the trial where it is."""
        self.attempt = self.printed = None
        leave, self._leave = self._leave, None
        self._stop_watch()
        if leave is not None:
            leave()
        self._end_span(outcome="stopped")

    def train(self) -> dict[str, object]:
        """Return the report of the next rung; a failure is a report too, with its traceback.

        `objective` and `step` are repeated beside it for Tune's schedulers.

        Raises:
            StaleWriteError: if the trial has a later attempt.
        """
        try:
            if self.span is None:
                self.span = begin_span(Order.from_dict(self.config))
            self.printed = self.printed or Printed(Order.from_dict(self.config))
            with self.span.within(), self.printed:
                if self.attempt is None:
                    order = Order.from_dict(self.config)
                    self.memory = self.memory or memory_limit.watch(order)
                    self.attempt = self._open(order)
                report = self.attempt.advance()
        except StaleWriteError:
            raise  # not this trial's failure: it has a later attempt
        except (Exception, KeyboardInterrupt) as error:  # the one edge for a trial's errors
            report = self._explain(error)
        report = replace(report, place=report.place or self._place)
        lost = report.lost is not None
        done = lost or report.outcome is not None
        if done:
            self._stop_watch()
            self._end_span(outcome=report.outcome or "lost", step=report.step)
        told = {"done": done, LOST: lost, "step": report.step}
        return {REPORT: json.dumps(report.to_dict()), **told, **report.metrics}

    def _explain(self, error: BaseException) -> Report:
        """Return the report of an error: whose fault it is, and in which words."""
        step = 0 if self.attempt is None else self.attempt.reached_step
        if (disk_failed := is_of_the_disk(error)) or is_of_the_node(error):
            words = f"node {platform.node()}: {error}"
            return Report(step, lost=words, lost_by="disk" if disk_failed else "node")
        if (crowding := self._find_crowding(error)) is not None:
            return Report(step, lost=crowding, lost_by="node")
        if is_out_of_threads(error) and (crowd := find_crowd()) is not None:
            words = f"node {platform.node()}: {error}: {crowd}"
            return Report(step, lost=words, lost_by="memory")
        told = describe_failure(error)
        if self._device != "cpu" and is_of_the_device(error):
            words = f"node {platform.node()} lost {self._place.device}: {told}"
            return Report(step, lost=words, lost_by="device")
        return Report(step, outcome="failed", error=told)

    def _open(self, order: Order) -> Attempt | EngineSlot:
        """Return what trains an order's trial rung by rung: this process, or an engine."""
        check_order(order)
        check_build(self._device)
        if order.engine is None or self._take_slot is None:
            return open_attempt(order, self._device)
        slot = self._take_slot(order)
        self._leave = slot.leave
        return slot

    def _find_crowding(self, error: BaseException) -> str | None:
        """Return why there was no memory, where other processes hold that of this one's device."""
        if not is_out_of_memory(error):
            return None
        order = Order.from_dict(self.config)
        return find_crowding(self._device, order.resources.get("GPU", 1.0))

    def _stop_watch(self) -> None:
        watch, self.memory = self.memory, None
        if watch is not None:
            watch.stop()

    def _end_span(self, **attributes: str | int) -> None:
        """End the span of the attempt, if it is open."""
        span, self.span = self.span, None
        if span is not None:
            span.end(**attributes)
            traces.flush()  # this process may be killed soon


def begin_span(order: Order) -> traces.OpenSpan:
    """Return a span for an attempt, below that of its driver."""
    traces.set_up("trial", order.otlp_endpoint)
    numbers = {"trial": order.number, "attempt": order.attempt}
    return traces.OpenSpan("attempt", order.trace, experiment=order.experiment, **numbers)


def check_order(order: Order) -> None:
    """Name this process in its log after an order's trial, and see that it may train it.

    Raises:
        ForeignCodeError: if this process would run other code than the driver.
        StoreAwayError: if this node does not see the store that the driver sees.
    """
    logs.set_up(order.log_format)
    logs.name_process(order.experiment, order.number)
    parts = None
    if order.marker is not None:
        parts = store_markers.read(Store(order.storage), order.experiment, order.marker)
    check_code(order.code, parts)


def open_attempt(order: Order, device: str) -> Attempt:
    """Return what trains an order's trial in this process.

    Raises:
        DeviceError: if the device cannot be used.
        StaleAttemptError: if a later attempt has begun.
    """
    from eigensweep.training.lanes import replicates
    from eigensweep.training.memory import limit_device

    try_out(device)
    limit_device(device, order.resources.get("GPU", 1.0))
    return replicates.open_attempt(order, device)


def describe_failure(error: BaseException) -> str:
    """Return the traceback of a trial's error; where memory was lacking, with what would help."""
    words = cut_middle(traceback.format_exc())
    if is_out_of_memory(error):
        words += (
            f"{memory_limit.KIND}: there was not enough memory for it. A smaller task.batch_size, "
            "shorter sequences or fewer hidden units take less; a larger resources.gpus leaves "
            "more of a GPU to each trial\n"
        )
    return words

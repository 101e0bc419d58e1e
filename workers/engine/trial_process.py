"""The process of a trial: an actor of Ray's that is used for one trial after another.

A trial arrives as a plain dict, an `Order`. It trains in this process, or an engine trains it and
this process only asks. Importing this loads neither torch nor MLflow: the process that trains does.
Nor does it load Ray Tune, whose import takes 1.5 s of a processor and 66 MB. Tune, in the driver,
calls `train`, `train_next` and `stop`, and asks for nothing else of its own `Trainable`:
checkpoints are in the store.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import traceback
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import ray

from eigensweep.workers.engine.actor import Seat, find_node
from eigensweep.workers.shared import logs, nonces, traces
from eigensweep.workers.shared.checkpoints import open_store
from eigensweep.workers.shared.code import ForeignCodeError, check_code
from eigensweep.workers.shared.durable_files import disk_failure
from eigensweep.workers.shared.ledger import StaleWriteError
from eigensweep.workers.shared.loading import load_for_good
from eigensweep.workers.shared.messages import Json, Order, Place, Report
from eigensweep.workers.trial import memory_limit
from eigensweep.workers.trial.memory_limit import MemoryWatch

if TYPE_CHECKING:
    from eigensweep.workers.trial.attempt import Attempt

REPORT = "report"
"""Key of a `Report`, as JSON text, in what `TrialProcess.train` returns: what is no text, Tune
takes apart four times, and writes out for a log that nobody keeps."""

LOST = "lost"
"""Key beside it: whether the attempt was lost through no fault of the trial, which comes again."""


class TrialProcess:
    """Trains the trial it was last given, one rung a call.

    Tune starts actors that it never uses and lets them stop after others have taken their trial,
    so nothing that is shared is touched before the first `train`.
    """

    def __init__(self, config: Json) -> None:
        """Import what trains, which takes seconds: they belong to the process, not to a trial.

        If the code here is wrong, the first report says so.
        """
        self.config = config
        """The order, as plain data."""
        self.attempt: Attempt | Seat | None = None
        self.span: traces.OpenSpan | None = None
        """Of the attempt."""
        self.memory: MemoryWatch | None = None
        """Over this process, while it trains."""
        order = Order.from_dict(config)
        if order.engine is not None:
            return
        with suppress(ForeignCodeError, ImportError), load_for_good():
            check_code(order.code)
            import_module("eigensweep.workers.trial.attempt")

    def train_next(self, config: Json) -> Json:
        """Take another trial, and return its first report, in one call of the driver's."""
        self.stop()
        self.config = config
        return self.train()

    def stop(self) -> None:
        """Leave the trial where it is."""
        attempt, self.attempt = self.attempt, None
        self._stop_watch()
        if isinstance(attempt, Seat):
            attempt.leave()
        self._end_span(outcome="stopped")

    def train(self) -> Json:
        """Return the report of the next rung; a failure is a report too, with its traceback.

        `objective` and `step` are repeated beside it for Tune's schedulers.
        """
        device = assigned_device()
        try:
            if self.span is None:
                self.span = begin_span(Order.from_dict(self.config))
            with self.span.within():
                if self.attempt is None:
                    order = Order.from_dict(self.config)
                    self.memory = self.memory or memory_limit.watch(order)
                    self.attempt = open_attempt(order, device)
                report = self.attempt.advance()
        except StaleWriteError:
            raise  # not this trial's failure: it has a later attempt
        except Exception as error:
            # The one edge where a trial's errors are caught, whatever they are.
            step = 0 if self.attempt is None else self.attempt.reached_step
            words = f"node {platform.node()}: {error}"
            if disk_failure(error) is not None:
                report = Report(step, lost=words, lost_by="disk", node_id=find_node())
            elif is_of_the_node(error):
                report = Report(step, lost=words, lost_by="node", node_id=find_node())
            else:
                report = Report(step, outcome="failed", error=describe_failure(error))
        here = Place(platform.node(), os.getpid(), device)
        report = replace(report, place=report.place or here)
        lost = report.lost is not None
        done = lost or report.outcome is not None
        if done:
            self._stop_watch()
            self._end_span(outcome=report.outcome or "lost", step=report.step)
        told = {"done": done, LOST: lost, "step": report.step}
        return {REPORT: json.dumps(report.to_dict()), **told, **report.metrics}

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


def open_attempt(order: Order, device: str) -> Attempt | Seat:
    """Return what trains an order's trial rung by rung: this process, or an engine.

    Raises:
        ForeignCodeError: if this process would run other code than the driver.
        StaleAttemptError: if a later attempt has begun.
        StoreAwayError: if this node does not see the store that the driver sees.
    """
    logs.set_up(order.log_format)
    logs.name_process(order.experiment, order.number)
    parts = None
    if order.nonce is not None:
        parts = nonces.read(open_store(order.storage), order.experiment, order.nonce)
    check_code(order.code, parts)
    if order.engine is not None:
        return Seat(order)
    from eigensweep.workers.engine import replicates
    from eigensweep.workers.trial.memory import limit_device

    limit_device(device, order.resources.get("GPU", 1.0))
    return replicates.open_attempt(order, device)


def describe_failure(error: Exception) -> str:
    """Return the traceback of a trial's error; where memory was lacking, with what would help."""
    words = traceback.format_exc()
    if "torch" in sys.modules and is_of_memory(error):
        words += (
            f"{memory_limit.KIND}: there was not enough memory for it. A smaller task.batch_size, "
            "shorter sequences or fewer hidden units take less; a larger resources.gpus leaves "
            "more of a GPU to each trial\n"
        )
    return words


def is_of_memory(error: Exception) -> bool:
    """Tell whether the device, or the machine, had no memory left."""
    from eigensweep.workers.engine.errors import is_out_of_memory

    return is_out_of_memory(error)


def is_of_the_node(error: Exception) -> bool:
    """Tell whether another node might do better: this one has other code, or lacks a corpus."""
    if isinstance(error, ForeignCodeError):
        return True
    from eigensweep.tasks.corpus import CorpusMissingError

    return isinstance(error, CorpusMissingError)


def assigned_device() -> str:
    """Return the device that Ray gave to this process."""
    return "cuda" if ray.get_gpu_ids() else "cpu"

"""A trial as Ray Tune sees it: an actor that is used for one trial after another.

Importing this loads neither torch nor MLflow. A trial arrives as a plain dict, an `Order`; what
trains it is imported by the process that will. Tune's own checkpoints are off: an attempt looks
into the store instead.
"""

from __future__ import annotations

import os
import platform
import traceback
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import ray
from ray import tune

from eigensweep.workers.shared.code import ForeignCodeError, check_code
from eigensweep.workers.shared.ledger import StaleWriteError
from eigensweep.workers.shared.messages import Json, Order, Place, Report

if TYPE_CHECKING:
    from eigensweep.workers.trial.attempt import Attempt

REPORT = "report"
"""Key of a `Report`, as plain data, in what `TrialTrainable.step` returns."""


class TrialTrainable(tune.Trainable):
    """Trains the trial it was last given, one rung a step.

    Tune starts actors that it never uses and lets them clean up after others have taken their
    trial, so nothing that is shared is touched before the first `step`.
    """

    attempt: Attempt | None = None

    @classmethod
    def default_resource_request(cls, config: Json) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([Order.from_dict(config).resources])

    def setup(self, config: Json) -> None:
        """Import what trains, which takes seconds: they belong to the process, not to a trial.

        If the code here is wrong, the first step reports it as the trial's own failure.
        """
        with suppress(ForeignCodeError, ImportError):
            check_code(Order.from_dict(config).code)
            import_module("eigensweep.workers.trial.attempt").warm_up()

    def reset_config(self, new_config: Json) -> bool:
        self.attempt = None
        return True

    def cleanup(self) -> None:
        self.attempt = None

    def step(self) -> Json:
        """Return the report of the next rung; a failure is a report too, with its traceback.

        `objective` and `step` are repeated beside it for Tune's schedulers.
        """
        device = assigned_device()
        try:
            if self.attempt is None:
                order = Order.from_dict(self.config)
                check_code(order.code)
                from eigensweep.workers.trial.attempt import Attempt

                self.attempt = Attempt(order, device)
            report = self.attempt.advance()
        except StaleWriteError:
            raise  # not this trial's failure: it has a later attempt
        except Exception as error:
            # The one edge where a trial's errors are caught, whatever they are.
            step = 0 if self.attempt is None else self.attempt.reached_step
            report = Report(step, outcome="failed", error=describe(error))
        report = replace(report, place=Place(platform.node(), os.getpid(), device))
        done = report.outcome is not None
        return {REPORT: report.to_dict(), "done": done, "step": report.step, **report.metrics}

    def save_checkpoint(self, checkpoint_dir: str) -> Json:
        return {}

    def load_checkpoint(self, checkpoint: Json | None) -> None:
        self.attempt = None


def describe(error: Exception) -> str:
    """Return an error for a person to read: a bug with its traceback, a refusal without."""
    if isinstance(error, ForeignCodeError):
        return str(error)
    return traceback.format_exc()


def assigned_device() -> str:
    """Return the device that Ray gave to this process."""
    return "cuda" if ray.get_gpu_ids() else "cpu"

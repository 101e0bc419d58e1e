"""A trial as Ray Tune sees it: an actor that is used for one trial after another.

Importing this loads neither torch nor MLflow. A trial arrives as a plain dict; what trains it is
imported by the process that will. Tune's own checkpoints are off: the store is looked into instead.
"""

from __future__ import annotations

import hashlib
import os
import platform
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from eigensweep.workers.shared.ledger import StaleWriteError

if TYPE_CHECKING:
    from eigensweep.workers.trial.attempt import Attempt

PACKAGES = ("models", "tasks", "search_spaces", "workers")
"""The packages whose code decides a trial's numbers."""

SUFFIXES = (".py", ".cpp", ".h")


class ForeignCodeError(RuntimeError):
    """A trial's process would import other code than its driver did."""


class TrialTrainable(tune.Trainable):
    """Trains the trial it was last given, one rung a step.

    Tune starts actors that it never uses and lets them clean up after others have taken their
    trial, so nothing that is shared is touched before the first `step`.
    """

    attempt: Attempt | None = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([config["resources"]])

    def setup(self, config: dict[str, Any]) -> None:
        """Import what trains, which takes seconds: they belong to the process, not to a trial.

        What is wrong with the code here is said at the first step, as the trial's own failure.
        """
        with suppress(ForeignCodeError, ImportError):
            check_code(config["code"])
            import_module("eigensweep.workers.trial.attempt").warm_up()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.attempt = None
        return True

    def cleanup(self) -> None:
        self.attempt = None

    def step(self) -> dict[str, Any]:
        """Return the report of the next rung; a failure is a report too, with its traceback.

        `report` holds `step`, `metrics`, `outcome` (None while there is more to train), `result`,
        `error` and `place`. `objective` and `step` are repeated beside it for Tune's schedulers.
        """
        where = device()
        place = {"node": platform.node(), "pid": os.getpid(), "device": where}
        try:
            if self.attempt is None:
                check_code(self.config["code"])
                from eigensweep.workers.trial.attempt import Attempt

                self.attempt = Attempt(self.config, where)
            report = {**self.attempt.advance(), "error": None}
        except StaleWriteError:
            raise  # not this trial's failure: it has a later attempt
        except Exception as error:
            # The one edge where a trial's errors are caught, whatever they are.
            report = {
                "step": 0 if self.attempt is None else self.attempt.reached,
                "metrics": {},
                "outcome": "failed",
                "result": None,
                "error": said(error),
            }
        done = report["outcome"] is not None
        flat = {"step": report["step"], **report["metrics"]}
        return {"report": {**report, "place": place}, "done": done, **flat}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {}

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        self.attempt = None


def said(error: Exception) -> str:
    """Return an error as a person should read it: what refuses with words does so without code."""
    if isinstance(error, ForeignCodeError):
        return str(error)
    return traceback.format_exc()


def device() -> str:
    """Return the device that Ray gave to this process."""
    return "cuda" if ray.get_gpu_ids() else "cpu"


@cache
def own_code() -> dict[str, str]:
    """Return the folder this process imports Eigensweep from, and a digest of the code there."""
    folder = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in PACKAGES:
        for path in sorted((folder / name).rglob("*")):
            if path.suffix in SUFFIXES:
                digest.update(path.relative_to(folder).as_posix().encode())
                digest.update(path.read_bytes())
    return {"folder": str(folder), "digest": digest.hexdigest()[:16], "node": platform.node()}


def check_code(driver: dict[str, str]) -> None:
    """Raise ForeignCodeError unless this process would run the same code as the driver.

    In the driver's own folder it does: a file edited there while it runs is no other version.
    """
    own = own_code()
    where = ("node", "folder")
    if own["digest"] != driver["digest"] and any(own[key] != driver[key] for key in where):
        raise ForeignCodeError(
            f"the worker on {own['node']} has other code than the driver: {own['folder']} "
            f"({own['digest']}) against {driver['folder']} ({driver['digest']}) on "
            f"{driver['node']}. Install the same version of Eigensweep on both."
        )

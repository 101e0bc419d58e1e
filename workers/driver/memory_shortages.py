"""Keeps a driver alive when Ray ends processes of trials because their node has no memory left.

Ray reports such an end as an `OutOfMemoryError`. Tune handles the end of a process only if it is
reported as a `RayActorError`. At any other error it gives up all trials, and the driver would die
with them.
"""

from __future__ import annotations

from typing import Any

from ray.air.execution._internal.actor_manager import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError

from eigensweep.workers.shared.deaths import explain_shortage


class MemoryShortageError(RayActorError):
    """A process was ended because its node had no memory left."""


class PatientActorManager(RayActorManager):
    """Tune's manager of processes, which treats a lack of memory as the death of a process."""

    def _actor_start_failed(self, tracked_actor: Any, exception: Exception) -> None:
        super()._actor_start_failed(tracked_actor, translate(exception))

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        super()._actor_task_failed(tracked_actor_task, translate(exception))


def translate(error: Exception) -> Exception:
    """Return the error that Tune understands."""
    if not isinstance(error, OutOfMemoryError):
        return error
    return MemoryShortageError(error_msg=explain_shortage(str(error)))

"""Whether Linux lets Ray, the service, drivers and trials have the threads that they need."""

from __future__ import annotations

from typing import Final

from eigensweep.common.machine import list_thread_limits

AT_REST: Final = 220
"""Threads and processes of a service, of its Ray, MLflow and a driver."""
OF_A_TRIAL: Final = 30
"""Those of a trial on a processor. With 1, 2 and 8 trials at once all were 241, 264 and 419."""


def find_thread_problem(processors: float) -> str | None:
    """Return in words that too few threads may run for trials on all processors; None: enough."""
    limit = min(list_thread_limits(), key=lambda each: each.most, default=None)
    needed = AT_REST + OF_A_TRIAL * max(1, int(processors))
    if limit is None or limit.most >= needed:
        return None
    return (
        f"{limit.name} allows {limit.most:,} processes and threads, and trials on "
        f"{processors:g} processors need about {needed:,} with all around them"
    )

"""Peak memory of a training step, each taken by a process of its own.

A step of a few time steps comes first: libraries, parameters, gradients and the optimizer's state
are there when the baseline is taken. Then the high-water mark of the process's resident memory is
put back to what is in use, where the system allows it (Linux), and two whole steps are taken.
The difference is what a step holds at most, in whatever language it was allocated.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import resource
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Literal

from bench.rounds import settle
from bench.steps import step_of
from bench.workloads import Workload, material

WARM_UP_STEPS = 8

Kind = Literal["ours", "loop"]


def peaks_mb(workload: Workload, cases: Sequence[tuple[str, Kind]]) -> Iterator[float | None]:
    """Yield the megabytes (10⁶ bytes) of each (model, kind); None where there is no such loop.

    A process for each is forked from one that has its imports behind it and has computed nothing.
    """
    context = multiprocessing.get_context("forkserver")
    # An optimizer imports torch._dynamo at its first step: seconds, once for all processes.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for model, kind in cases:
            yield pool.submit(peak_mb, workload, model, kind).result()


def peak_mb(workload: Workload, model: str, kind: Kind) -> float | None:
    """Return the megabytes that a step takes in this process, which has done nothing else."""
    settle()
    whole = material(workload.config())
    built = step_of(kind, model, workload.hidden_size, whole)
    if built is None:
        return None
    built.on(whole.cut(WARM_UP_STEPS))()
    _forget_peak()
    before, step = _resident_peak(), built.on(whole)
    step()
    step()
    return (_resident_peak() - before) / 1e6


def _resident_peak() -> int:
    """Return the high-water mark of this process's resident memory, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

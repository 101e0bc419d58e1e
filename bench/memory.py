"""Measure the peak memory of a training step, in a process of its own.

First, one step over a few time steps loads libraries and allocates parameters, gradients and the
optimizer's state. Then the high-water mark of the process's resident memory is reset to the memory
in use (on Linux; other systems do not allow it), and two whole steps are run. The result is the
growth of the high-water mark. It covers memory that was allocated by Python, PyTorch or C++.
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
    """Yield the megabytes (10⁶ bytes) of each (model, kind); None if the model has no plain loop.

    Each case has its own process, forked from one that has only imported everything.
    """
    context = multiprocessing.get_context("forkserver")
    # An optimizer imports torch._dynamo at its first step, which takes seconds: do it once.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for model, kind in cases:
            yield pool.submit(peak_mb, workload, model, kind).result()


def peak_mb(workload: Workload, model: str, kind: Kind) -> float | None:
    """Return the megabytes that a step takes, in a process that has done nothing else."""
    settle()
    whole = material(workload.config())
    built = step_of(kind, model, workload.hidden_size, whole)
    if built is None:
        return None
    built.on(whole.cut(WARM_UP_STEPS))()
    reset_peak()
    before, step = resident_peak(), built.on(whole)
    step()
    step()
    return (resident_peak() - before) / 1e6


def resident_peak() -> int:
    """Return the high-water mark of this process's resident memory, in bytes.

    Linux counts what was there before `exec` into `ru_maxrss`, so its own file is read there.
    """
    if (found := _read_status("VmHWM:")) is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def resident_bytes() -> int:
    """Return this process's resident memory, in bytes; 0 where the system does not say."""
    return _read_status("VmRSS:") or 0


def _read_status(name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return 1024 * int(line.split()[1])
    return None


def reset_peak() -> None:
    """Set the high-water mark to the memory in use, where the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")

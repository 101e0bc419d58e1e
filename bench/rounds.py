"""Timing side by side: one thread on one core, processor time, variants in turn in every round.

What one variant does to a machine's caches and clock, and what a neighbour does, meets all of a
round alike. So what is compared is the median of the ratios within rounds.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch

from eigensweep.models.recurrence.native import ungated
from eigensweep.models.recurrence.native.library import load_library

LEAST_ROUNDS = 3
"""Rounds in which a variant takes part however long it takes."""


def settle() -> dict[str, Any]:
    """Go to one thread on one core, denormals flushed; return what the machine is."""
    torch.set_num_threads(1)
    flushed = torch.set_flush_denormal(True)
    core = None
    if hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "pinned_to": core,
        "threads": torch.get_num_threads(),
        "denormals_flushed": flushed,
        "native_steps": load_library(ungated.SOURCE) is not None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": [round(load, 1) for load in os.getloadavg()],
    }


def processor() -> str:
    """Return the processor's name, and which of its vector instructions PyTorch uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def interleaved(
    variants: Mapping[str, Callable[[], object]], rounds: int, seconds: float = math.inf
) -> dict[str, list[float]]:
    """Return the milliseconds of processor time of each variant in each round.

    The order is drawn anew in each round, after one round that is not counted. A variant that has
    used up so many `seconds` sits out what comes after its third round: NaN.
    """
    names, order = list(variants), random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        variants[name]()
    gc.collect()
    gc.freeze()  # what was there before is not gone through again, however large it is
    try:
        for number in range(rounds):
            for name in order.sample(names, len(names)):
                spent = sum(t for t in taken[name] if not math.isnan(t)) / 1e3
                if number >= LEAST_ROUNDS and spent > seconds:
                    taken[name].append(math.nan)
                    continue
                gc.collect()
                began = time.process_time()
                variants[name]()
                taken[name].append(1e3 * (time.process_time() - began))
    finally:
        gc.unfreeze()
    return taken


def middle(numbers: Iterable[float]) -> float:
    """Return the median of those numbers that are not NaN.

    >>> middle([3.0, float("nan"), 1.0, 2.0])
    2.0
    """
    return median(number for number in numbers if not math.isnan(number))


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """Return the median of the ratios within rounds that both took part in.

    >>> ratio([8.0, 2.0, 9.0], [4.0, 2.0, float("nan")])
    1.5
    """
    return middle(a / b for a, b in zip(above, below, strict=True))

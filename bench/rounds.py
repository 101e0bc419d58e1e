"""Compare running times: one thread on one core, processor time, all variants in every round.

Caches, the processor's clock and other programs change over time, but they change little within a
round. So variants are compared by their ratio within a round, and the result is the median of these
ratios over all rounds.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch

from eigensweep.common.machine import read_processor
from eigensweep.models.recurrence.native import ungated
from eigensweep.models.recurrence.native.library import load_library
from eigensweep.training.memory import keep_freed_memory

LEAST_ROUNDS = 3
"""A variant takes part in at least so many rounds, even if it is slow."""


def settle() -> dict[str, Any]:
    """Set one thread, one core, and what a trial's process sets; return what the machine is."""
    torch.set_num_threads(1)
    flushed = torch.set_flush_denormal(True)
    keep_freed_memory()
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
    return f"{read_processor()[0]} ({torch.backends.cpu.get_cpu_capability()})"


def time_in_turns(
    variants: Mapping[str, Callable[[], object]], rounds: int, seconds: float = math.inf
) -> dict[str, list[float]]:
    """Return the milliseconds of processor time of each variant in each round.

    The order of the variants is drawn anew in each round. One round before the first is not
    counted. A variant that has taken more than `seconds` sits out the rounds after its third: NaN.
    """
    names, order = list(variants), random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        variants[name]()
    gc.collect()
    gc.freeze()  # the collector then skips everything that exists already
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


def median_of(numbers: Iterable[float]) -> float:
    """Return the median of the numbers that are not NaN.

    >>> median_of([3.0, float("nan"), 1.0, 2.0])
    2.0
    """
    return median(number for number in numbers if not math.isnan(number))


def ratio(above: Iterable[float], below: Iterable[float]) -> float:
    """Return the median of the ratios, over the rounds in which both took part.

    >>> ratio([8.0, 2.0, 9.0], [4.0, 2.0, float("nan")])
    1.5
    """
    return median_of(a / b for a, b in zip(above, below, strict=True))

"""Whether the replicates of one trial gain by training side by side on one core.

    python -m bench.replicates [MODEL,N,BATCH,DELAY,REPLICATES ...]

Rounds alternate between the replicates as lanes of one group and one training alone, both for half
a second. What counts is lane-steps by CPU second, so that other work on the machine matters little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import median

import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.lanes.stacked.group import Group
from eigensweep.training.training import Training

CASES = ["scornn,64,20,100,3", "lstm,64,20,100,3", "scornn,64,20,100,2", "lstm,64,20,100,2"]
ROUNDS, SECONDS = 3, 0.5
NEEDED = {"scornn": {"negative_fraction": 0.5}, "enrnn": {"short_fraction": 0.5}}


class _Enough(Exception):  # noqa: N818  (not an error)
    """The round is over."""


def make(model: str, n: int, batch: int, delay: int, seed: int) -> Training:
    """Return a training on the copying task that is never evaluated after step 0."""
    content = {
        "task": {"name": "copying", "delay": delay, "batch_size": batch},
        "model": {"name": model, "hidden_size": n, **NEEDED.get(model, {})},
        "optimizer": {"name": "rmsprop"},
        "training": {"steps": 10**8, "evaluate_every": 10**8, "log_every": 10**8},
    }
    return Training(TrialConfig.from_dict(content), seed)


def run(training: Training) -> None:
    """Train alone for a round."""

    def stop() -> None:
        raise _Enough

    with suppress(_Enough):
        training.run(commit=stop, checkpoint_seconds=SECONDS)


def rate(training: Training, act: Callable[[], None], lanes: int) -> float:
    """Return the lane-steps by CPU second of a round."""
    before, began = training.step, time.process_time()
    act()
    return lanes * (training.step - before) / (time.process_time() - began)


def compare(model: str, n: int, batch: int, delay: int, replicates: int) -> list[float]:
    """Return, of each round, how many times the rate of a training alone the lanes have."""
    alone = make(model, n, batch, delay, seed=99)
    beside = [make(model, n, batch, delay, seed) for seed in range(replicates)]
    group = Group(beside[0], replicates)
    for training in beside:
        group.join(training)
    gains = []
    for number in range(2 + ROUNDS):  # the first two evaluate, compile and warm up
        slow = rate(alone, lambda: run(alone), 1)
        fast = rate(beside[0], lambda: group.advance(SECONDS), replicates)
        if number >= 2:
            gains.append(fast / slow)
    group.close()
    return gains


def main(cases: list[str]) -> None:
    """Print the gain of each case."""
    torch.set_num_threads(1)
    for case in cases or CASES:
        model, *numbers = case.split(",")
        gains = compare(model, *map(int, numbers))
        sys.stdout.write(f"{case}: {median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

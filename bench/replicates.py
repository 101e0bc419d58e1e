"""Whether the replicates of one trial gain by training side by side: on one core, or on several.

    python -m bench.replicates [MODEL,N,BATCH,DELAY,REPLICATES ...]
    python -m bench.replicates --cores 2 [MODEL,N,BATCH,DELAY,REPLICATES ...]

On one core, rounds alternate between the replicates as lanes of one group and one training alone,
both for half a second. What counts is lane-steps by CPU second, so that other work on the machine
matters little.

On several cores, rounds alternate between the replicates one after another with one thread, the
same with as many threads of PyTorch as cores, so many replicates at once, and the replicates as
lanes of one group and of a group for each core. What counts is the time that passes, so nothing
else may run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import torch

from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.training.attempt import Threads
from eigensweep.training.lanes.stacked.group import Group
from eigensweep.training.training import Training

CASES = ["scornn,64,20,100,3", "lstm,64,20,100,3", "scornn,64,20,100,2", "lstm,64,20,100,2"]
CASES_OF_CORES = [
    "lt_rnn,80,20,200,4",
    "lstm,80,20,200,4",
    "asrnn,128,32,300,4",
    "exprnn,190,50,500,4",
    "lstm,512,32,50,2",
]
ROUNDS, SECONDS, STEPS = 3, 0.5, 20
NEEDED = {"scornn": {"negative_fraction": 0.5}, "enrnn": {"short_fraction": 0.5}}


def make(model: str, n: int, batch: int, delay: int, seed: int) -> Training:
    """Return a training on the copying task that is never evaluated after step 0."""
    content = {
        "task": {"name": "copying", "delay": delay, "batch_size": batch},
        "model": {"name": model, "hidden_size": n, **NEEDED.get(model, {})},
        "optimizer": {"name": "rmsprop"},
        "training": {"steps": 10**8, "evaluate_every": 10**8, "log_every": 10**8},
    }
    return Training(TrialConfig.from_dict(content), seed)


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
        slow = rate(alone, lambda: alone.run_for(SECONDS), 1)
        fast = rate(beside[0], lambda: group.advance(SECONDS), replicates)
        if number >= 2:
            gains.append(fast / slow)
    group.close()
    return gains


def compare_cores(
    cores: int, model: str, n: int, batch: int, delay: int, replicates: int
) -> dict[str, list[float]]:
    """Return, of each round, how many times faster than one thread several ways are."""
    trainings = [make(model, n, batch, delay, seed) for seed in range(replicates)]

    def take(threads: Threads) -> float:
        """Return the steps by second of trainings alone."""

        def step(training: Training) -> None:
            threads.set_up()
            for _ in range(STEPS):
                training.take_step()

        began = time.perf_counter()
        threads.run([partial(step, training) for training in trainings])
        return replicates * STEPS / (time.perf_counter() - began)

    def advance(groups: list[Group]) -> float:
        """Return the steps by second of lanes, with a thread for each group."""
        before = sum(each.step for group in groups for each in group.trainings)
        began = time.perf_counter()
        threads = Threads(len(groups), 1)
        threads.set_up()
        threads.run([partial(group.advance, SECONDS) for group in groups])
        spent = time.perf_counter() - began
        return (sum(each.step for group in groups for each in group.trainings) - before) / spent

    def make_groups(count: int) -> list[Group]:
        made = [make(model, n, batch, delay, seed) for seed in range(replicates)]
        groups = []
        for members in (made[k::count] for k in range(count)):
            groups.append(Group(members[0], len(members)))
            for training in members:
                groups[-1].join(training)
        return groups

    one, several = make_groups(1), make_groups(min(cores, replicates))
    ways: dict[str, Callable[[], float]] = {
        "threads of PyTorch": partial(take, Threads(1, cores)),
        "replicates at once": partial(take, Threads(cores, 1)),
        "lanes on one core": partial(advance, one),
        "lanes on each core": partial(advance, several),
    }
    gains: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(2 + ROUNDS):  # the first two evaluate, compile and warm up
        alone = take(Threads(1, 1))
        for name, act in ways.items():
            gain = act() / alone
            if number >= 2:
                gains[name].append(gain)
    for group in (*one, *several):
        group.close()
    return gains


def main(words: list[str]) -> None:
    """Print the gain of each case."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("cases", nargs="*", metavar="MODEL,N,BATCH,DELAY,REPLICATES")
    asked = parser.parse_args(words)
    torch.set_num_threads(1)
    for case in asked.cases or (CASES if asked.cores == 1 else CASES_OF_CORES):
        model, *numbers = case.split(",")
        sizes = map(int, numbers)
        ways = (
            {"": compare(model, *sizes)}
            if asked.cores == 1
            else compare_cores(asked.cores, model, *sizes)
        )
        for name, gains in ways.items():
            spread = f"{median(gains):.2f} ({min(gains):.2f} to {max(gains):.2f})"
            sys.stdout.write(f"{' '.join(filter(None, (case, name)))}: {spread}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

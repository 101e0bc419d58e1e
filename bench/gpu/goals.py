"""The floors and aims that the measurements are held against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A number that is measured, the least that is accepted, and what is aimed at."""

    words: str
    floor: float
    aim: float | None = None
    unit: str = "x"
    at_most: bool = False
    """Whether smaller is better."""

    def is_met(self, value: float) -> bool:
        """Tell whether a value is within the floor."""
        return value <= self.floor if self.at_most else value >= self.floor


GOALS = {
    "loop": Goal("one lane of copying, B=20 n=192 T=2020, against the loop as it is", 8, 30),
    "core": Goal("the same against one CPU core with compiled steps", 4, 20),
    "paper": Goal("copying, B=128 n=138 T=1020, against 0.62 s of the asRNN paper", 100, 300),
    "lanes": Goal("32 lanes of copying, lane-steps a second against one CPU core", 60, 190),
    "alone": Goal("32 lanes, trials an hour against one process a trial", 30, 250),
    "sharing": Goal("32 lanes, trials an hour against the best number of processes", 10, 50),
    "rnn": Goal("one lane of copying against cuDNN's nn.RNN of the same n", 1, 3),
    "lstm": Goal("one lane of copying against cuDNN's nn.LSTM of as many parameters", 1, 2),
    "mnist-512": Goal("permuted MNIST, n=512: one lane against the loop as it is", 3, 10),
    "ptb-32": Goal("Penn Treebank, B=32 n=1024: one lane against the loop as it is", 3, 10),
    "ptb-128": Goal("Penn Treebank, B=128 n=1024: one lane against the loop as it is", 3, 10),
    "idle": Goal("idle lane time under ASHA while trials wait", 5, unit=" %", at_most=True),
}

COLUMNS = {
    "words": "goal",
    "measured": "measured",
    "floor": "floor",
    "aim": "aim",
    "verdict": "floor met",
}


def judge(
    values: Mapping[str, float], *, is_trial_run: bool = False, only_measured: bool = False
) -> list[dict[str, Any]]:
    """Return a row for each goal: measured value, floor, aim, verdict. A trial run has no verdict.

    >>> [row["verdict"] for row in judge({"loop": 9.0, "idle": 7.0}, only_measured=True)]
    ['yes', 'NO']
    """
    rows = []
    for name, goal in GOALS.items():
        value = values.get(name)
        if value is None and only_measured:
            continue
        row: dict[str, Any] = {
            "words": goal.words,
            "floor": f"{goal.floor:g}{goal.unit}",
            "aim": None if goal.aim is None else f"{goal.aim:g}{goal.unit}",
            "verdict": "not measured",
        }
        if value is not None and is_trial_run:
            row["verdict"] = "tried out only"
        elif value is not None:
            row["measured"] = f"{value:.3g}{goal.unit}"
            row["verdict"] = "yes" if goal.is_met(value) else "NO"
        rows.append(row)
    return rows

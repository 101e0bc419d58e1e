"""Variable-length copying: the marker comes at a random step, so that counting does not help.

Source: Henaff, Szlam & LeCun, ICML 2016, sections 3.1.3 and 4.2; layout as in the program of
Mhammedi et al., ICML 2017. Henaff et al. take far fewer steps here than for copying. The number is
missing in our copy of the text, so the default delay may differ from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks.base import Split
from eigensweep.tasks.recall import Recall, RecallConfig
from eigensweep.tasks.streams import below, draw

MOST_DRAWN = 100_000
"""Sequences that are drawn at most to know the baseline of a set; that takes less than a second."""


class VariableCopyingConfig(RecallConfig):
    """The settings of variable-length copying."""

    name: Literal["variable_copying"] = "variable_copying"
    delay: int = Field(
        50, ge=2, le=1_000_000, description="Steps T; the marker comes 1 to T-1 after the string"
    )
    baseline_kind: Literal["place_known", "step_only"] = Field(
        "place_known",
        description="What the memoryless baseline knows. `place_known`: where the answer stands, "
        "as if it remembered the marker's step; `step_only`: the number and the input of the "
        "current step",
    )

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of the best model that knows only what `baseline_kind` says.

        For `step_only`: if the input of a step is a blank, the answer stands there with a
        probability q that depends on the number of the step. The symbol is guessed. It is scored on
        the validation sequences, whose markers do not stand at each place equally often.
        """
        return self.baselines_on("valid")

    def baselines_on(self, split: Split) -> dict[str, float]:
        if self.baseline_kind == "place_known":
            return super().baselines
        size = self.valid_size if split == "valid" else self.test_size
        S, T, K = self.symbols, self.delay, self.alphabet
        even = np.ones(T - 1)
        blanks, answers = _count_blanks(even, S)
        q = answers / np.maximum(blanks, 1)
        drawn = even if size > MOST_DRAWN else np.array(_count_markers(S, T, split, size))
        blanks, answers = _count_blanks(drawn, S)
        sure, wrong = _log(1 - q), np.where(q + q / K < 1 - 1e-9, answers, blanks - answers / K)
        surprise = -(answers @ (_log(q) - log(K)) + (blanks - answers) @ sure)
        positions = drawn.sum() * self.sequence_length
        return {
            "cross_entropy": float(surprise / positions),
            "recall_accuracy": 1 / K,
            "accuracy": 1 - float(wrong.sum() / positions),
        }


@lru_cache(maxsize=256)
def _count_markers(S: int, T: int, split: Split, size: int) -> tuple[int, ...]:
    """Return how many sequences of a split have their marker at each of its T - 1 places."""
    numbers = draw(f"variable_copying/{split}", range(size), S + 1)
    return tuple(np.bincount(below(numbers[:, S], T - 1), minlength=T - 1).tolist())


def _count_blanks(
    markers: NDArray[np.float64], S: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return for each step t >= S how many blanks stand there, and answers below them.

    `markers` counts the markers at steps S + 1 to S + T - 1.
    """
    steps = np.zeros(len(markers) + 1 + S)  # from S to T + 2S - 1
    steps[1 : 1 + len(markers)] = markers
    before = np.concatenate(([0.0], steps.cumsum()))
    t = np.arange(len(steps))
    return markers.sum() - steps, before[t] - before[np.maximum(t - S, 0)]


def _log(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the logarithm, 0 where nothing can happen."""
    return np.log(np.where(p > 0, p, 1.0))


class VariableCopying(Recall):
    """Recall `symbols` symbols, starting one step after a marker that comes at a random step.

    The step of the marker is drawn for each sequence, from S+1 to S+T-1. At least one blank stands
    before it, and blanks follow the answer.

    >>> task = VariableCopying(VariableCopyingConfig(delay=5, symbols=2))
    >>> print(task.picture(seed=1))
    input   2 2 . . : . . . .
    target  . . . . . 2 2 . .
    >>> print(task.picture(seed=2))
    input   1 1 . . . : . . .
    target  . . . . . . 1 1 .
    """

    Config = VariableCopyingConfig
    config: VariableCopyingConfig

    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        S, T, K = self.config.symbols, self.config.delay, self.config.alphabet
        numbers = draw(stream, rows, S + 1)
        string = 1 + below(numbers[:, :S], K).T
        marker = S + 1 + below(numbers[:, S], T - 1)
        x = np.zeros((T + 2 * S, len(rows)), dtype=np.int64)
        y = np.zeros_like(x)
        each = np.arange(len(rows))
        x[:S] = string
        x[marker, each] = K + 1
        y[marker + 1 + np.arange(S)[:, None], each] = string
        return x, y

"""Variable-length copying: the marker comes at a random step, so that counting does not help.

Source: Henaff, Szlam & LeCun, ICML 2016, sections 3.1.3 and 4.2; layout as in the program of
Mhammedi et al., ICML 2017. Henaff et al. take far fewer steps here than for copying. The number is
missing in our copy of the text, so the default delay may differ from theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks.recall import Recall, RecallConfig
from eigensweep.tasks.streams import below, draw


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
        probability q that depends on the number of the step. The symbol is guessed.
        """
        if self.baseline_kind == "place_known":
            return super().baselines
        K, steps = self.alphabet, self.sequence_length
        blank, q = self._blank_and_answer()
        surprise = _entropy(q) + q * log(K)
        doubt = np.minimum(q, 1 - q / K)  # share of wrong answers of the better guess
        return {
            "cross_entropy": float(blank @ surprise) / steps,
            "recall_accuracy": 1 / K,
            "accuracy": 1 - float(blank @ doubt) / steps,
        }

    def _blank_and_answer(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return for each step t >= S the probability of a blank, and of an answer at a blank."""
        S, T = self.symbols, self.delay
        t = np.arange(S, T + 2 * S)
        first, last = S + 1, S + T - 1  # first and last possible step of the marker
        markers = last - first + 1 - ((first <= t) & (t <= last))
        answers = np.minimum(t - 1, last) - np.maximum(t - S, first) + 1
        q = np.clip(answers, 0, None) / np.maximum(markers, 1)
        return markers / (T - 1), q


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


def _entropy(q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropy, in nats, of a choice between two, made with probability q."""
    sure = (q == 0) | (q == 1)
    q = np.where(sure, 0.5, q)
    return np.where(sure, 0.0, -q * np.log(q) - (1 - q) * np.log(1 - q))

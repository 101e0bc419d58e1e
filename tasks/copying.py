"""Copying: recall a string of symbols after a long silence.

Source: Hochreiter & Schmidhuber 1997, in the form of Helfrich & Ye, AAAI 2020, section 5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from eigensweep.tasks.base import Batch, Shapes
from eigensweep.tasks.recall import Recall, RecallConfig, TrainSize
from eigensweep.tasks.streams import below, draw


class CopyingConfig(RecallConfig):
    """The settings of the copying task."""

    name: Literal["copying"] = "copying"
    delay: int = Field(2_000, ge=1, le=1_000_000, description="Steps of silence, T")
    train_size: TrainSize = 20_000
    marker: Literal["after_marker", "at_marker"] = Field(
        "after_marker",
        description="Whether the answer starts one step after the marker (ENRNN, scoRNN, nnRNN) "
        "or at the marker (expRNN, asRNN); in both, each symbol is asked for S + T steps after "
        "it was shown",
    )
    input_coding: Literal["one_hot", "scalar"] = Field(
        "one_hot",
        description="A symbol is one of K + 2 inputs (`one_hot`), or its code is the only input "
        "(`scalar`)",
    )

    @property
    def shapes(self) -> Shapes:
        if self.input_coding == "scalar":
            return replace(super().shapes, input_size=1, input_kind="values")
        return super().shapes


class Copying(Recall):
    """Recall `symbols` symbols, starting one step after a marker breaks the silence.

    >>> print(Copying(CopyingConfig(delay=3, symbols=2)).picture(seed=1))
    input   4 1 . . : . .
    target  . . . . . 4 1
    >>> print(Copying(CopyingConfig(delay=3, symbols=2, marker="at_marker")).picture(seed=1))
    input   4 1 . . . : .
    target  . . . . . 4 1
    """

    Config = CopyingConfig
    config: CopyingConfig

    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        S, T, K = self.config.symbols, self.config.delay, self.config.alphabet
        x = np.zeros((T + 2 * S, len(rows)), dtype=np.int64)
        y = np.zeros_like(x)
        x[:S] = y[S + T :] = 1 + below(draw(stream, rows, S), K).T
        x[S + T - (self.config.marker == "after_marker")] = K + 1
        return x, y

    def _batch(self, stream: str, rows: Sequence[int]) -> Batch:
        batch = super()._batch(stream, rows)
        if self.config.input_coding == "scalar":
            return replace(batch, x=batch.x.float().unsqueeze(-1))
        return batch

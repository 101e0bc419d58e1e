"""Selective copying: recall symbols that are scattered among blanks, one for each marker.

Source: Gu & Dao, Mamba, 2023, section 4.1.1, after Jing et al. 2017; layout as in the program of
Feng et al., Were RNNs All We Needed?, 2024 (BorealisAI/minRNNs at ff52e9d), with 14 symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from eigensweep.tasks.base import Batch, Metric
from eigensweep.tasks.cross_entropy import cross_entropy
from eigensweep.tasks.recall import Alphabet, BatchSize, Recall, RecallConfig, Symbols
from eigensweep.tasks.streams import below, draw


class SelectiveCopyingConfig(RecallConfig):
    """The settings of selective copying."""

    name: Literal["selective_copying"] = "selective_copying"
    batch_size: BatchSize = 64
    delay: int = Field(
        4_080,
        ge=1,
        le=1_000_000,
        description="Blanks T among the symbols: the markers follow after T + S steps, 4,096 in "
        "the papers",
    )
    symbols: Symbols = 16
    alphabet: Alphabet = 14

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("cross_entropy", "nats"),
            Metric("recall_accuracy", "fraction", "higher"),
        )

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of guessing each symbol with probability 1 / K."""
        return {"cross_entropy": log(self.alphabet), "recall_accuracy": 1 / self.alphabet}


class SelectiveCopying(Recall):
    """Recall `symbols` symbols that were scattered among blanks, one at each of as many markers.

    The symbols stand at S different steps among the first T + S. All sets of steps are equally
    likely. Only the steps of the markers are scored.

    >>> task = SelectiveCopying(SelectiveCopyingConfig(delay=6, symbols=3, alphabet=9))
    >>> print(task.picture(seed=1))
    input   . 4 . . . . . 6 1 : : :
    target  . . . . . . . . . 4 6 1
    """

    Config = SelectiveCopyingConfig
    config: SelectiveCopyingConfig

    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        S, T, K = self.config.symbols, self.config.delay, self.config.alphabet
        numbers = draw(stream, rows, S + T + S)
        string = 1 + below(numbers[:, :S], K).T
        places = np.argpartition(numbers[:, S:], S - 1, axis=1)[:, :S]  # of the S smallest
        x = np.zeros((T + 2 * S, len(rows)), dtype=np.int64)
        y = np.zeros_like(x)
        x[np.sort(places, axis=1).T, np.arange(len(rows))] = y[T + S :] = string
        x[T + S :] = K + 1
        return x, y

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        S = self.config.symbols
        return cross_entropy(logits[-S:], batch.y[-S:])

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        S = self.config.symbols
        answers, y = logits[-S:], batch.y[-S:]
        return {
            "cross_entropy": (cross_entropy(answers, y, reduction="sum"), y.numel()),
            "recall_accuracy": ((answers.argmax(-1) == y).sum(), y.numel()),
        }

    def _batch(self, stream: str, rows: Sequence[int]) -> Batch:
        batch = super()._batch(stream, rows)
        return replace(batch, mask=batch.y > 0)

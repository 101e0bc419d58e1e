"""The common part of copying, variable copying and denoise: a string is recalled much later.

Codes: 0 is the blank, 1 to K are the symbols, K + 1 is the marker. A sequence has τ = T + 2S steps.
The target of a step is the blank or a symbol, and never the marker.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import log
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from eigensweep.tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from eigensweep.tasks.cross_entropy import cross_entropy
from eigensweep.tasks.streams import MAX_SIZE, chunks

BatchSize = Annotated[int, Field(ge=1, le=65_536, description="Sequences in a training batch, B")]
Symbols = Annotated[int, Field(ge=1, le=10_000, description="Number of symbols to recall, S")]
Alphabet = Annotated[int, Field(ge=2, le=10_000, description="Number of different symbols, K")]
TrainSize = Annotated[
    int | None,
    Field(
        ge=1,
        le=MAX_SIZE,
        description="Strings of a training set that is drawn once and used again and again in the "
        "same order; null: fresh strings at every step",
    ),
]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class RecallConfig(TaskConfig):
    """The settings that these tasks have in common."""

    batch_size: BatchSize = 20
    delay: int = Field(200, ge=1, le=1_000_000, description="Steps of silence, T")
    symbols: Symbols = 10
    alphabet: Alphabet = 8
    train_size: TrainSize = None
    valid_size: Size = Field(2_000, description="Validation sequences")
    test_size: Size = Field(1_000, description="Test sequences")

    @property
    def shapes(self) -> Shapes:
        K = self.alphabet
        return Shapes(input_size=K + 2, input_kind="symbols", output_size=K + 1, readout="all")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (
            Metric("cross_entropy", "nats"),
            Metric("recall_accuracy", "fraction", "higher"),
            Metric("accuracy", "fraction", "higher"),
        )

    @property
    def sequence_length(self) -> int:
        return self.delay + 2 * self.symbols

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps until every training string was used; the last batch may wrap around.

        Raises:
            ValueError: if the strings are fresh at every step.
        """
        if self.train_size is None:
            raise ValueError(
                f"{self.name} with 'train_size' null draws fresh strings and has no epochs; "
                "give the budget as 'training.steps'"
            )
        return -(-self.train_size // self.batch_size)

    @property
    def default_evaluate_every(self) -> int:
        return 100

    @property
    def baselines(self) -> dict[str, float]:
        """The scores of a model that knows where the answer stands, but forgets every symbol.

        It predicts each blank with certainty, and each of the K symbols with probability 1 / K.
        """
        S, K, steps = self.symbols, self.alphabet, self.sequence_length
        return {
            "cross_entropy": S * log(K) / steps,
            "recall_accuracy": 1 / K,
            "accuracy": (steps - S + S / K) / steps,
        }


class Recall(Task):
    """Every position is scored, also the blanks; `recall_accuracy` counts the S symbols only.

    A sequence is a function of (seed, split, row) alone. Step k uses the rows k B to k B + B - 1 of
    the training stream, modulo `train_size`. Validation and test data are the same for every seed.
    """

    config: RecallConfig

    @abstractmethod
    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return inputs and targets as codes, each (τ, B), for these rows of a stream."""

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B) symbols, y (τ, B) class numbers."""
        rows = step * self.config.batch_size + np.arange(self.config.batch_size)
        if self.config.train_size is not None:
            rows %= self.config.train_size
        return self._batch(f"{self.config.name}/train/{seed}", rows.tolist())

    def evaluation(self, split: Split) -> Iterator[Batch]:
        size = self.config.valid_size if split == "valid" else self.config.test_size
        for rows in chunks(size, self.config.sequence_length):
            yield self._batch(f"{self.config.name}/{split}", rows)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits, batch.y)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        y, strings = batch.y, batch.y.shape[1]
        total = cross_entropy(logits, y, reduction="sum")
        right = logits.argmax(-1) == y
        return {
            "cross_entropy": (total, y.numel()),
            "recall_accuracy": ((right & (y > 0)).sum(), strings * self.config.symbols),
            "accuracy": (right.sum(), y.numel()),
        }

    def picture(self, seed: int) -> str:
        """Return the first training sequence of `seed` as text; `.` is a blank, `:` the marker."""
        signs = {0: ".", self.config.alphabet + 1: ":"}
        x, y = self.sequences(f"{self.config.name}/train/{seed}", [0])
        drawn = {
            word: [signs.get(code, str(code)) for code in codes.flatten().tolist()]
            for word, codes in (("input", x), ("target", y))
        }
        width = max(len(cell) for row in drawn.values() for cell in row)
        return "\n".join(
            f"{word:7} {' '.join(cell.rjust(width) for cell in row)}" for word, row in drawn.items()
        )

    def _batch(self, stream: str, rows: Sequence[int]) -> Batch:
        x, y = self.sequences(stream, rows)
        return Batch(torch.from_numpy(x), torch.from_numpy(y))

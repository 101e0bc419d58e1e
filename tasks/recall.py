"""What copying, variable copying and denoise share: a string is seen, and recalled much later.

Codes: blank 0, symbols 1 to K, marker K + 1. Of τ = T + 2S steps every one has a target, a blank
or a symbol; the marker is never one.
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
Symbols = Annotated[int, Field(ge=1, le=10_000, description="Symbols to recall, S")]
Alphabet = Annotated[int, Field(ge=2, le=10_000, description="Different symbols, K")]
TrainSize = Annotated[
    int | None,
    Field(
        ge=1,
        le=MAX_SIZE,
        description="Strings in a training set drawn once and taken in order, over and over; "
        "null: fresh strings at every step",
    ),
]
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class RecallConfig(TaskConfig):
    """What an experiment may set on each of these tasks."""

    batch_size: BatchSize = 20
    delay: int = Field(200, ge=1, le=1_000_000, description="Steps to wait, T")
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
        """Optimizer steps in which every training string comes up; the last one may wrap around.

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
        """What a model scores that knows where the answer stands and forgets every symbol.

        It is sure of each blank and spreads its guess evenly over the K symbols.
        """
        S, K, steps = self.symbols, self.alphabet, self.sequence_length
        return {
            "cross_entropy": S * log(K) / steps,
            "recall_accuracy": 1 / K,
            "accuracy": (steps - S + S / K) / steps,
        }


class Recall(Task):
    """Every position is scored, blanks too; `recall_accuracy` looks at the S symbols alone.

    What is guaranteed: a sequence is a function of (seed, split, row) alone; row r of the training
    stream comes up at step r // B, modulo `train_size`. Validation and test data are the same for
    every seed.
    """

    config: RecallConfig

    @abstractmethod
    def sequences(
        self, stream: str, rows: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the codes shown and the codes asked for, each (τ, B), of rows of a stream."""

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

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        y, strings = batch.y, batch.y.shape[1]
        total = cross_entropy(logits, y, reduction="sum")
        right = logits.argmax(-1) == y
        return {
            "cross_entropy": (total, y.numel()),
            "recall_accuracy": ((right & (y > 0)).sum(), strings * self.config.symbols),
            "accuracy": (right.sum(), y.numel()),
        }

    def picture(self, seed: int) -> str:
        """Return the first training sequence of `seed`, drawn as text: blank `.`, marker `:`."""
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

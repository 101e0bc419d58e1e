"""Copying: recall a string of symbols after a long silence.

Source: Hochreiter & Schmidhuber 1997, in the form of Helfrich & Ye, AAAI 2020, section 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy

from tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from tasks.streams import MAX_SIZE, below, chunks, draw


class CopyingConfig(TaskConfig):
    """What an experiment may set on the copying task."""

    name: Literal["copying"] = "copying"
    batch_size: int = Field(20, ge=1, le=65_536, description="Sequences in a training batch, B")
    delay: int = Field(2_000, ge=1, le=1_000_000, description="Steps to wait, T")
    symbols: int = Field(10, ge=1, le=10_000, description="Symbols to recall, S")
    alphabet: int = Field(8, ge=2, le=10_000, description="Different symbols, K")
    marker: Literal["after_marker", "at_marker"] = Field(
        "after_marker",
        description="Whether the answer starts one step after the marker (ENRNN, scoRNN, nnRNN) "
        "or at the marker (expRNN, asRNN); a symbol travels S + T steps in both",
    )
    input_coding: Literal["one_hot", "scalar"] = Field(
        "one_hot", description="A symbol as one of K + 2 inputs, or its code as one float"
    )
    train_size: int | None = Field(
        20_000,
        ge=1,
        le=MAX_SIZE,
        description="Strings in a training set drawn once and taken in order, over and over; "
        "null: fresh strings at every step",
    )
    valid_size: int = Field(2_000, ge=1, le=MAX_SIZE, description="Validation sequences")
    test_size: int = Field(1_000, ge=1, le=MAX_SIZE, description="Test sequences")

    @property
    def shapes(self) -> Shapes:
        p = self.alphabet + 1  # the marker is never an answer
        if self.input_coding == "scalar":
            return Shapes(input_size=1, input_kind="values", output_size=p, readout="all")
        return Shapes(input_size=p + 1, input_kind="symbols", output_size=p, readout="all")

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
                "copying with 'train_size' null draws fresh strings and has no epochs; "
                "give the budget as 'training.steps'"
            )
        return -(-self.train_size // self.batch_size)

    @property
    def default_evaluate_every(self) -> int:
        return 100

    def baseline(self, metric: str | None = None) -> float:
        """Return what a model scores that knows the step and forgets every symbol.

        It is sure of each blank and spreads its guess evenly over the K symbols.
        """
        S, K, steps = self.symbols, self.alphabet, self.sequence_length
        known = {
            "cross_entropy": S * log(K) / steps,
            "recall_accuracy": 1 / K,
            "accuracy": (steps - S + S / K) / steps,
        }
        metric = metric or "cross_entropy"
        if metric not in known:
            raise ValueError(f"copying has no metric '{metric}'; it has {', '.join(known)}")
        return known[metric]


class Copying(Task):
    """Recall `symbols` symbols, starting one step after a marker breaks the silence.

    Codes: blank 0 (drawn `.`), symbols 1 to K, marker K + 1 (drawn `:`). Every position is scored,
    blanks too; `recall_accuracy` looks at the last S alone.

    What is guaranteed: a string is a function of (seed, split, row) alone; row r of the training
    stream comes up at step r // B, modulo `train_size`. Validation and test data are the same for
    every seed.

    >>> print(Copying(CopyingConfig(delay=3, symbols=2)).picture(seed=1))
    input   4 1 . . : . .
    target  . . . . . 4 1
    >>> print(Copying(CopyingConfig(delay=3, symbols=2, marker="at_marker")).picture(seed=1))
    input   4 1 . . . : .
    target  . . . . . 4 1
    """

    Config = CopyingConfig
    config: CopyingConfig

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B) symbols, y (τ, B) class numbers."""
        rows = step * self.config.batch_size + np.arange(self.config.batch_size)
        if self.config.train_size is not None:
            rows %= self.config.train_size
        return self._sequences(f"copying/train/{seed}", rows.tolist())

    def evaluation(self, split: Split) -> Iterator[Batch]:
        size = self.config.valid_size if split == "valid" else self.config.test_size
        for rows in chunks(size, self.config.sequence_length):
            yield self._sequences(f"copying/{split}", rows)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return cross_entropy(logits.flatten(0, 1), batch.y.flatten())

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        y, recall = batch.y, batch.y[-self.config.symbols :]
        total = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        right = logits.argmax(-1) == y
        return {
            "cross_entropy": (total, y.numel()),
            "recall_accuracy": (right[-self.config.symbols :].sum(), recall.numel()),
            "accuracy": (right.sum(), y.numel()),
        }

    def picture(self, seed: int) -> str:
        """Return the first training sequence of `seed`, drawn as text."""
        marker = self.config.alphabet + 1
        batch = self._sequences(f"copying/train/{seed}", [0])
        lines = {"input": batch.x.flatten().tolist(), "target": batch.y.flatten().tolist()}
        signs = {0: ".", marker: ":"}
        drawn = {word: [signs.get(int(c), str(int(c))) for c in row] for word, row in lines.items()}
        width = max(len(cell) for row in drawn.values() for cell in row)
        return "\n".join(
            f"{word:7} {' '.join(cell.rjust(width) for cell in row)}" for word, row in drawn.items()
        )

    def _sequences(self, stream: str, rows: Sequence[int]) -> Batch:
        S, T, K = self.config.symbols, self.config.delay, self.config.alphabet
        string = 1 + below(draw(stream, rows, S), K).T
        x = np.zeros((T + 2 * S, len(rows)), dtype=np.int64)
        y = np.zeros_like(x)
        x[:S] = y[S + T :] = string
        x[S + T - (self.config.marker == "after_marker")] = K + 1
        codes, targets = torch.from_numpy(x), torch.from_numpy(y)
        if self.config.input_coding == "scalar":
            return Batch(codes.float().unsqueeze(-1), targets)
        return Batch(codes, targets)

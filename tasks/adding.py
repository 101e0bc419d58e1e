"""Adding: give the sum of two marked values after the last step.

Source: Hochreiter & Schmidhuber 1997, in the form of Helfrich & Ye, AAAI 2020, section 5.1. The
marks stand where the authors' programs put them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn.functional import mse_loss

from eigensweep.tasks.base import Batch, Metric, Shapes, Split, Task, TaskConfig
from eigensweep.tasks.streams import MAX_SIZE, below, chunks, draw, epoch_order, uniform

MOST_NUMBERS = 20_000_000
"""Numbers that are drawn at most to know the baseline of a set; that takes less than a second."""

Variant = Literal["halves", "halves_nnrnn", "uniform"]


class AddingConfig(TaskConfig):
    """The settings of the adding task."""

    name: Literal["adding"] = "adding"
    batch_size: int = Field(50, ge=1, le=65_536, description="Sequences in a training batch, B")
    length: int = Field(750, ge=2, le=1_000_000, description="Time steps of a sequence, T")
    variant: Variant = Field(
        "halves",
        description="Where the two marks are. `halves`: one in each half, split at floor((T-1)/2) "
        "(ENRNN); `halves_nnrnn`: one in each half, split in the middle (nnRNN); `uniform`: "
        "anywhere",
    )
    train_size: int | None = Field(
        100_000,
        ge=1,
        le=MAX_SIZE,
        description="Sequences of a training set that is drawn once and reshuffled in every epoch; "
        "null: fresh sequences at every step",
    )
    valid_size: int = Field(2_000, ge=1, le=MAX_SIZE, description="Validation sequences")
    test_size: int = Field(10_000, ge=1, le=MAX_SIZE, description="Test sequences")

    def check(self) -> None:
        super().check()
        if self.variant == "halves" and self.length < 3:
            raise ValueError(
                f"adding with variant 'halves' needs 'length' of at least 3; it is {self.length}"
            )
        if self.train_size is not None and self.train_size < self.batch_size:
            raise ValueError(
                f"adding needs 'train_size' of at least 'batch_size' ({self.batch_size}), or null "
                f"for fresh sequences; it is {self.train_size}"
            )

    @property
    def shapes(self) -> Shapes:
        return Shapes(input_size=2, input_kind="values", output_size=1, readout="last")

    @property
    def metrics(self) -> tuple[Metric, ...]:
        return (Metric("mse", "squared error"),)

    @property
    def sequence_length(self) -> int:
        return self.length

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training set; an incomplete last batch is dropped.

        Raises:
            ValueError: if the sequences are fresh at every step.
        """
        if self.train_size is None:
            raise ValueError(
                "adding with 'train_size' null draws fresh sequences and has no epochs; "
                "give the budget as 'training.steps'"
            )
        return self.train_size // self.batch_size

    @property
    def default_evaluate_every(self) -> int:
        return 100

    @property
    def baselines(self) -> dict[str, float]:
        """The MSE of always answering 1 on the validation sequences.

        Of all sequences it is 1/6, the variance of a sum of two uniform values.
        """
        return self.baselines_on("valid")

    def baselines_on(self, split: Split) -> dict[str, float]:
        size = self.valid_size if split == "valid" else self.test_size
        return {"mse": _error_of_answering_one(self.variant, self.length, split, size)}


@lru_cache(maxsize=256)
def _error_of_answering_one(variant: Variant, length: int, split: Split, size: int) -> float:
    """Return the MSE of always answering 1 on the sequences of a split; 1/6 if they are many."""
    if size * length > MOST_NUMBERS:
        return 1 / 6
    sized = {"valid_size": size, "test_size": size}
    task = Adding(AddingConfig(length=length, variant=variant, **sized))
    return sum(((b.y.double() - 1) ** 2).sum().item() for b in task.evaluation(split)) / size


class Adding(Task):
    """Add the two marked values of a sequence; every other value is noise.

    A sequence is a function of (seed, split, row) alone, and the order of an epoch is a function of
    (seed, epoch) alone. Validation and test data are the same for every seed. A fixed training set
    takes no memory, since its rows are computed again whenever they are needed.

    >>> print(Adding(AddingConfig(length=6)).picture(seed=1))
    values  0.74 0.30 0.15 0.03 0.98 0.51
    marks   1    .    .    1    .    .
    target  .    .    .    .    .    0.77
    """

    Config = AddingConfig
    config: AddingConfig

    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of one step: x (τ, B, 2) values and marks, y (B, 1) sums."""
        B = self.config.batch_size
        rows: Sequence[int] | NDArray[np.int64]
        if self.config.train_size is None:
            rows = range(step * B, (step + 1) * B)
        else:
            epoch, place = divmod(step, self.config.steps_per_epoch)
            order = epoch_order(f"adding/order/{seed}", epoch, self.config.train_size)
            rows = order[place * B : (place + 1) * B]
        return self._sequences(f"adding/train/{seed}", rows)

    def evaluation(self, split: Split) -> Iterator[Batch]:
        size = self.config.valid_size if split == "valid" else self.config.test_size
        for rows in chunks(size, self.config.length):
            yield self._sequences(f"adding/{split}", rows)

    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        return mse_loss(logits, batch.y)

    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        return {"mse": (mse_loss(logits, batch.y, reduction="sum"), batch.y.numel())}

    def picture(self, seed: int) -> str:
        """Return the first training sequence of `seed`, drawn as text."""
        batch = self._sequences(f"adding/train/{seed}", [0])
        values = [f"{v:.2f}" for v in batch.x[:, 0, 0].tolist()]
        marks = ["1   " if m else ".   " for m in batch.x[:, 0, 1].tolist()]
        target = [".   "] * (len(values) - 1) + [f"{batch.y.item():.2f}"]
        lines = {"values": values, "marks": marks, "target": target}
        return "\n".join(f"{word:7} {' '.join(cells)}".rstrip() for word, cells in lines.items())

    def _sequences(self, stream: str, rows: Sequence[int] | NDArray[np.int64]) -> Batch:
        T = self.config.length
        numbers = draw(stream, rows, T + 2)
        values, each = uniform(numbers[:, 2:]), np.arange(len(rows))
        first, second = self._marks(numbers[:, 0], numbers[:, 1])
        marks = np.zeros_like(values)
        marks[each, first] = marks[each, second] = 1
        x = np.stack([values.T, marks.T], axis=-1)
        y = (values[each, first] + values[each, second])[:, None]
        return Batch(torch.from_numpy(x), torch.from_numpy(y))

    def _marks(
        self, one: NDArray[np.uint64], two: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        T = self.config.length
        match self.config.variant:
            case "halves":
                h = (T - 1) // 2
                return below(one, h), h + below(two, T - h)
            case "halves_nnrnn":  # with an odd T the middle is never marked
                return below(one, T // 2), T - T // 2 + below(two, T // 2)
            case "uniform":
                first, second = below(one, T), below(two, T - 1)
                return first, second + (second >= first)

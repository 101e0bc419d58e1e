"""The contract that every task keeps.

Letters in shapes: τ sequence length, B batch size, m input size, p output size. Time comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from eigensweep.direction import Better

Split = Literal["valid", "test"]

MAX_POSITIONS = 100_000_000
"""Most time steps, summed over the sequences, in a training batch."""


@dataclass(frozen=True)
class Shapes:
    """What a model must know of a task."""

    input_size: int
    """Number m of input symbols, or of input features."""
    input_kind: Literal["symbols", "values"]
    """`symbols`: int64 (τ, B) indices; `values`: float32 (τ, B, m)."""
    output_size: int
    """Number p of outputs."""
    readout: Literal["all", "last"]
    """Whether every step is read out, or the last one only."""


@dataclass(frozen=True)
class Metric:
    """A number that a task reports; a task's first metric is its loss."""

    name: str
    unit: str
    better: Better = "lower"
    test_only: bool = False
    """Whether it is scored on test data alone: no search can rank by it."""


@dataclass(frozen=True)
class Batch:
    """One batch, time first."""

    x: Tensor
    """int64 (τ, B) symbols or float32 (τ, B, m) values."""
    y: Tensor
    """Targets: int64 (τ, B); where only the last step answers int64 (B,) or float32 (B, 1)."""
    mask: Tensor | None = None
    """Which positions the task scores, broadcastable to the targets; None: all."""
    starts: Tensor | None = None
    """bool (B,): rows that begin a new sequence and drop the carried state. None: no state is
    carried and every batch begins anew."""
    padded_to: int | None = None
    """Steps that the split's sequences are padded to, where the batch ends with its own longest
    one and the padding left out is still counted."""
    rows: Tensor | None = None
    """int64 (B,): which sequences of the split these are, where scores ask for more than y."""

    def to(self, device: str) -> Batch:
        """Return the batch on `device`."""
        return Batch(
            self.x.to(device),
            self.y.to(device),
            None if self.mask is None else self.mask.to(device),
            None if self.starts is None else self.starts.to(device),
            self.padded_to,
            None if self.rows is None else self.rows.to(device),
        )


class TaskConfig(BaseModel):
    """What an experiment may set on every task. What follows from a config needs no corpus."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    batch_size: int = Field(32, ge=1, le=65_536, description="Sequences in a training batch, B")

    def check(self) -> None:
        """Raise ValueError if fields contradict one another, with what is allowed."""
        if self.batch_size * self.sequence_length > MAX_POSITIONS:
            raise ValueError(
                f"{self.name} with sequences of {self.sequence_length} steps needs 'batch_size' of "
                f"at most {MAX_POSITIONS // self.sequence_length}; it is {self.batch_size}"
            )

    @property
    def shapes(self) -> Shapes:
        """What a model must know of this task."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, the loss first."""
        raise NotImplementedError

    def find_metric(self, name: str | None = None) -> Metric:
        """Return the metric of this name (default: the loss).

        Raises:
            ValueError: if the task has no such metric.
        """
        known = {metric.name: metric for metric in self.metrics}
        if name is None:
            return self.metrics[0]
        if name not in known:
            raise ValueError(f"{self.name} has no metric '{name}'; it has {', '.join(known)}")
        return known[name]

    @property
    def objectives(self) -> tuple[str, ...]:
        """The names of the metrics that a search can rank by: those of validation data."""
        return tuple(metric.name for metric in self.metrics if not metric.test_only)

    def objective_metric(self, name: str | None = None) -> Metric:
        """Return the metric of this name (default: the loss), to rank trials by.

        Raises:
            ValueError: if the task has no such metric, or has it on test data alone.
        """
        names = self.objectives
        if name is not None and name not in [metric.name for metric in self.metrics]:
            raise ValueError(f"{self.name} has no metric '{name}'; it has {', '.join(names)}")
        metric = self.find_metric(name)
        if metric.test_only:
            raise ValueError(
                f"{self.name} scores '{name}' on test data alone; rank by one of {', '.join(names)}"
            )
        return metric

    @property
    def sequence_length(self) -> int:
        """Number τ of time steps in a training batch."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one pass over the training data."""
        raise NotImplementedError

    @property
    def default_evaluate_every(self) -> int:
        """Optimizer steps between evaluations where the spec does not say."""
        raise NotImplementedError

    @property
    def baselines(self) -> dict[str, float]:
        """What remembering nothing scores on each metric for which the config alone tells."""
        raise NotImplementedError

    def baseline(self, metric: str | None = None) -> float:
        """Return what remembering nothing scores on `metric` (default: the loss).

        Raises:
            ValueError: if the task has no such metric or no baseline is known for it.
        """
        name = self.find_metric(metric).name
        known = self.baselines
        if name not in known:
            raise ValueError(f"no baseline of '{name}' is known from {self.name}'s config alone")
        return known[name]


class Task(ABC):
    """A source of batches with a loss and scores, built from its config and the data root.

    A batch is a function of (step, seed): the same on any machine and after a restart. Evaluation
    data is fixed. Nothing is downloaded and no device is chosen here: tensors are on the CPU.
    """

    Config: ClassVar[type[TaskConfig]]
    result_version: ClassVar[int] = 1
    """Raised when a change makes the same config give other batches; enters every trial's hash."""

    def __init__(self, config: TaskConfig, data_root: Path | None = None) -> None:
        config.check()
        self.config = config
        self.data_root = data_root

    @classmethod  # noqa: B027 - a generated task needs none
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        """Raise CorpusMissingError if a corpus this config needs is not there.

        Quick: names and sizes of files are looked at, and at most a list of them is read.
        """

    @property
    def baselines(self) -> dict[str, float]:
        """What remembering nothing scores on each metric for which that is known."""
        known = {}
        for metric in self.config.metrics:
            with suppress(ValueError):
                known[metric.name] = self.config.baseline(metric.name)
        return known

    @abstractmethod
    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the batch of optimizer step `step` (0-based) in the stream of `seed`."""

    @abstractmethod
    def evaluation(self, split: Split) -> Iterator[Batch]:
        """Yield the fixed data of a split, in chunks that fit memory, in order."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the scalar training loss: the mean over what the task scores."""

    @abstractmethod
    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int]]:
        """Return for each metric (sum, count): added over batches, then divided.

        What the batch has nothing for is left out, or has a count of 0.
        """

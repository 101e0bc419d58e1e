"""What every task provides: its settings, its batches, its loss and its scores.

Letters in shapes: τ sequence length, B batch size, m input size, p output size. Time comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from eigensweep.common.direction import Better
from eigensweep.common.plain_numbers import PlainNumbers

Split = Literal["valid", "test"]

MAX_POSITIONS = 100_000_000
"""Most time steps in a training batch, summed over its sequences."""


def _check_word(what: str, word: str, known: tuple[str, ...]) -> None:
    if word not in known:
        raise ValueError(f"{what} is {word!r}; it is {' or '.join(map(repr, known))}")


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
    """Whether the model answers at every step, or at the last one only."""

    def __post_init__(self) -> None:
        """Raise ValueError for other words: a task of one's own may have them."""
        _check_word("Shapes.input_kind", self.input_kind, ("symbols", "values"))
        _check_word("Shapes.readout", self.readout, ("all", "last"))


@dataclass(frozen=True)
class Metric:
    """A number that a task reports. The first metric of a task is its loss."""

    name: str
    unit: str
    better: Better = "lower"
    test_only: bool = False
    """Whether only test data is scored by it, so that no search can rank by it."""

    def __post_init__(self) -> None:
        """Raise ValueError for another `better`: all values would be ranked upside down."""
        _check_word(f"Metric({self.name!r}).better", self.better, get_args(Better))


@dataclass(frozen=True)
class Batch:
    """One batch, time first."""

    x: Tensor
    """int64 (τ, B) symbols or float32 (τ, B, m) values."""
    y: Tensor
    """Targets: int64 (τ, B) or float32 (τ, B, p); int64 (B,) or float32 (B, 1) if only the last
    step is read out."""
    mask: Tensor | None = None
    """bool, broadcastable to the targets: the positions that are scored. None: all of them."""
    starts: Tensor | None = None
    """bool (B,): rows that begin a new sequence, so that their state starts anew. None: no state
    passes from one batch to the next."""
    padded_to: int | None = None
    """Steps that the split's sequences count as padded to. The batch itself is padded only to its
    longest sequence. None: no more padding is counted than there is."""
    rows: Tensor | None = None
    """int64 (B,): the numbers of these sequences in the split. Only for scores that need more than
    y."""

    def pad(self, steps: int, rows: int) -> Batch:
        """Return the batch with more steps and rows, zero and not scored, and with a mask.

        Raises:
            ValueError: if the batch is larger, or has no step that answers in each added one.
        """
        more = steps - self.x.shape[0], rows - self.x.shape[1]
        reads_last = self.y.dim() < (3 if self.y.is_floating_point() else 2)
        if min(more) < 0 or (reads_last and more[0]):
            raise ValueError(
                f"a batch of {self.x.shape[0]} steps and {self.x.shape[1]} rows cannot be padded "
                f"to {steps} steps and {rows} rows"
            )
        mask = torch.ones(self.y.shape, dtype=torch.bool) if self.mask is None else self.mask

        def widen(part: Tensor, axes: tuple[int, ...]) -> Tensor:
            shape = list(part.shape)
            for axis, size in zip(axes, more[2 - len(axes) :], strict=True):
                shape[axis] += size
            wide = part.new_zeros(shape)
            wide[tuple(map(slice, part.shape))] = part
            return wide

        axes = (0,) if reads_last else (0, 1)
        starts = None if self.starts is None else widen(self.starts, (0,))
        x, y, mask = widen(self.x, (0, 1)), widen(self.y, axes), widen(mask, axes)
        return replace(self, x=x, y=y, mask=mask, starts=starts, rows=None)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the batch by the names of their fields."""
        return {name: part for name, part in vars(self).items() if isinstance(part, Tensor)}

    def map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with what `change` makes of each tensor in its place."""
        changed: dict[str, Any] = {name: change(part) for name, part in self.tensors.items()}
        return replace(self, **changed)

    def to(self, device: str) -> Batch:
        """Return the batch on `device`."""
        return self.map(lambda part: part.to(device))


class TaskConfig(PlainNumbers):
    """The settings that every task has. Everything that follows from them needs no corpus."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str
    batch_size: int = Field(32, ge=1, le=65_536, description="Sequences in a training batch, B")

    required: ClassVar[tuple[str, ...]] = ("shapes", "metrics", "sequence_length")
    """What each task's config defines."""

    def check(self) -> None:
        """Raise ValueError if fields contradict one another, with what is allowed."""
        if self.batch_size * self.sequence_length > MAX_POSITIONS:
            raise ValueError(
                f"{self.name} with sequences of {self.sequence_length} steps needs 'batch_size' of "
                f"at most {MAX_POSITIONS // self.sequence_length}; it is {self.batch_size}"
            )

    @property
    def shapes(self) -> Shapes:
        """What a model must know of the task."""
        raise NotImplementedError

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics; the first one is the loss."""
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
        """The names of the metrics that a search can rank by: those that validation data has."""
        return tuple(metric.name for metric in self.metrics if not metric.test_only)

    def objective_metric(self, name: str | None = None) -> Metric:
        """Return the metric of this name (default: the loss), to rank trials by.

        Raises:
            ValueError: if the task has no such metric, or has it for test data only.
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
        """Number τ of time steps of a training batch."""
        raise NotImplementedError

    @property
    def corpus_bytes(self) -> int:
        """Main memory that the corpus takes in a process, about, for previews. Default: none."""
        return 0

    @property
    def has_unequal_batches(self) -> bool:
        """Whether training batches differ in shape. Default: no.

        Networks that train side by side pad such batches to `sequence_length` steps, or to
        `padded_to` of the batch, and to `batch_size` rows, with a mask.
        """
        return False

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps in one epoch: one pass over the training data.

        Raises:
            ValueError: if the task has no epochs, or none that the config alone tells. Default.
        """
        raise ValueError(f"{self.name} has no epochs; give 'training.steps'")

    @property
    def default_evaluate_every(self) -> int:
        """Optimizer steps between evaluations where none are set. Default: 100."""
        return 100

    @property
    def baselines(self) -> dict[str, float]:
        """The memoryless baseline of each metric for which it follows from the config alone.

        It is the score on the validation data, as far as that differs from any other data's.
        Default: of none.
        """
        return {}

    def baselines_on(self, split: Split) -> dict[str, float]:
        """Return the same for the data of a split. Default: `baselines`, for both."""
        return self.baselines

    def baseline(self, metric: str | None = None) -> float:
        """Return the memoryless baseline of `metric` (default: the loss).

        It is the score of a model that remembers nothing of the sequence.

        Raises:
            ValueError: if the task has no such metric, or its baseline needs the corpus.
        """
        name = self.find_metric(metric).name
        known = self.baselines
        if name not in known:
            raise ValueError(
                f"the baseline of '{name}' does not follow from {self.name}'s config alone"
            )
        return known[name]


class Task(ABC):
    """A source of batches, with a loss and scores, built from its config and the data root.

    A batch is a function of (step, seed), so it is the same on every machine and after a restart;
    threads may draw batches side by side.
    Evaluation data is fixed. A task downloads nothing. Its tensors are on the CPU.
    """

    Config: ClassVar[type[TaskConfig]]
    result_version: ClassVar[int] = 1
    """Raise it when the same config gives other batches. It is part of every trial's hash."""

    def __init__(self, config: TaskConfig, data_root: Path | None = None) -> None:
        config.check()
        self.config = config
        self.data_root = data_root

    @classmethod  # noqa: B027 - tasks without a corpus need none
    def check_corpus(cls, config: TaskConfig, data_root: Path | None) -> None:
        """Raise CorpusMissingError if a corpus that this config needs is missing.

        It is quick: it looks at names and sizes of files, and reads at most a list of files.
        """

    @classmethod
    def list_corpus(cls, config: TaskConfig, data_root: Path) -> list[Path]:
        """Return the files below `data_root` that this config reads; none if it needs no corpus.

        A driver may copy them to nodes that lack them. A task that does not say so has to have its
        corpus on every node.

        Raises:
            CorpusMissingError: as `check_corpus` does.
        """
        return []

    @property
    def baselines(self) -> dict[str, float]:
        """The memoryless baseline of each metric that has one; this may read the corpus."""
        known = {}
        for metric in self.config.metrics:
            with suppress(ValueError):
                known[metric.name] = self.config.baseline(metric.name)
        return known

    @abstractmethod
    def train_batch(self, step: int, seed: int) -> Batch:
        """Return the training batch of optimizer step `step`, counted from 0, for this seed."""

    @abstractmethod
    def evaluation(self, split: Split) -> Iterator[Batch]:
        """Yield the data of a split in batches that fit into memory, always in the same order."""

    @abstractmethod
    def loss(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the training loss, a scalar: the mean over all scored positions.

        Where batches differ in shape, steps and rows that are not scored change nothing: the loss
        counts what the mask scores.

        `logits` are what the model returns for `batch.x`: (τ, B, p), or (B, p) if only the last
        step is read out.
        """

    @abstractmethod
    def scores(self, logits: Tensor, batch: Batch) -> dict[str, tuple[Tensor, int | Tensor]]:
        """Return (sum, count) for each metric; its value is the sum over batches by the count.

        A metric for which the batch has nothing is left out, or has a count of 0. A count may be a
        fraction, such as a sum of weights. Where it is read from the mask, it is left a 0-dim
        tensor, so that a GPU need not be waited for.
        """

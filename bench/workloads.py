"""The workloads: tasks and sizes of the papers, and the networks that train on them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eigensweep.models import MODELS, Model
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Batch, Shapes, Task, TaskConfig
from eigensweep.tasks.corpus import CorpusMissingError

FIELDS: dict[str, dict[str, Any]] = {
    "scornn": {"negative_fraction": 0.5},
    "enrnn": {"short_fraction": 0.1, "negative_fraction": 0.3},
    "goru": {"style": "tunable"},
}
"""Fields of a model besides its size: required ones, or in place of defaults that need a size."""


@dataclass(frozen=True)
class Workload:
    """A task with its batch, and a hidden size."""

    name: str
    task: dict[str, Any]
    hidden_size: int
    quick: dict[str, Any]
    """Fields of the task for a quick run."""
    floor: bool = True
    """Whether we promise a speed here. If not, memory is not measured."""

    def config(self) -> TaskConfig:
        return TASKS[self.task["name"]].Config(**self.task)

    def title(self) -> str:
        config = self.config()
        return f"{self.name}: B={config.batch_size} n={self.hidden_size} T={config.sequence_length}"


def copying(name: str, hidden_size: int, batch_size: int, delay: int) -> Workload:
    """Return a workload of copying, τ = `delay` + 20."""
    task = {"name": "copying", "delay": delay, "batch_size": batch_size}
    return Workload(name, task, hidden_size, {"delay": 30, "batch_size": 4})


def pixel_mnist(name: str, hidden_size: int, batch_size: int, floor: bool = True) -> Workload:
    """Return a workload of permuted pixels, τ = 784."""
    task = {"name": "pixel_mnist", "batch_size": batch_size}
    return Workload(name, task, hidden_size, {"batch_size": 2}, floor)


def ptb(name: str, hidden_size: int, batch_size: int) -> Workload:
    """Return a workload of characters, τ = 150."""
    task = {"name": "ptb_chars", "batch_size": batch_size, "bptt": 150}
    return Workload(name, task, hidden_size, {"batch_size": 4, "bptt": 12}, floor=False)


WORKLOADS = {
    workload.name: workload
    for workload in (
        copying("copying-20", 192, 20, 2_000),
        copying("copying-128", 138, 128, 1_000),
        pixel_mnist("mnist-128", 122, 128),
        pixel_mnist("mnist-512", 512, 100, floor=False),
        ptb("ptb-32", 1024, 32),
        ptb("ptb-128", 1024, 128),
    )
}


def small(workload: Workload) -> Workload:
    """Return the workload with small sizes, for a quick run."""
    return replace(workload, task=workload.task | workload.quick, hidden_size=32)


@dataclass(frozen=True)
class Material:
    """A task, one of its batches, and the batch's input as a plain loop takes it."""

    task: Task
    batch: Batch
    values: Tensor
    """float (τ, B, m): symbols as one-hot vectors."""
    source: str
    """`task`, or `drawn` if the corpus is missing and the batch is random; times do not differ."""

    @property
    def shapes(self) -> Shapes:
        return self.task.config.shapes

    def cut(self, steps: int) -> Material:
        """Return the same with only the first time steps."""
        y = self.batch.y
        whole = self.shapes.readout == "last"
        batch = replace(self.batch, x=self.batch.x[:steps], y=y if whole else y[:steps])
        return replace(self, batch=batch, values=self.values[:steps])


def material(config: TaskConfig) -> Material:
    """Return the first batch of a task, or a random batch if its corpus is missing."""
    root = os.environ.get("EIGENSWEEP_DATA_ROOT")
    task, source = TASKS[config.name](config, Path(root) if root else None), "task"
    try:
        batch = task.train_batch(0, 0)
    except CorpusMissingError:
        batch, source = random_batch(config), "drawn"
    x, shapes = batch.x, config.shapes
    symbols = shapes.input_kind == "symbols"
    values = one_hot(x, shapes.input_size).float() if symbols else x
    return Material(task, batch, values, source)


def random_batch(config: TaskConfig) -> Batch:
    """Return a random batch with the shapes of a task."""
    generator, shapes = torch.Generator().manual_seed(0), config.shapes
    size = (config.sequence_length, config.batch_size)
    if shapes.input_kind == "symbols":
        x = torch.randint(shapes.input_size, size, generator=generator)
    else:
        x = torch.rand(*size, shapes.input_size, generator=generator)
    answers = size if shapes.readout == "all" else size[1:]
    return Batch(x, torch.randint(shapes.output_size, answers, generator=generator))


def network(name: str, hidden_size: int, shapes: Shapes) -> Model:
    """Return an untrained network; an ENRNN has its normalisation on, which takes the most time."""
    torch.manual_seed(0)
    config = MODELS[name].Config(hidden_size=hidden_size, name=name, **FIELDS.get(name, {}))
    model = MODELS[name](config, shapes)
    if name == "enrnn":
        model.get_buffer("switched").fill_(True)
    return model


def trainable_models() -> list[str]:
    """Return the names of all models except the constructed ones, which are not trained."""
    return [name for name in MODELS if not name.startswith("constructed")]


def lstm_size(parameters: int, shapes: Shapes) -> int:
    """Return the largest hidden size of an LSTM with at most this number of free parameters."""
    size = MODELS["lstm"].Config(name="lstm", parameters=parameters).resolve(shapes).hidden_size
    assert size is not None
    return size

"""Trials as a service trains them, on data that needs no corpus."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from bench.gpu.turns import Repeated
from bench.workloads import FIELDS, Workload, random_batch
from eigensweep.models.recurrence.cuda import gated, scan
from eigensweep.models.recurrence.native.gated import Cell
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks import TASKS
from eigensweep.tasks.base import Batch, Split, Task, TaskConfig
from eigensweep.training.lanes.stacked.group import Group
from eigensweep.training.training import Training

NEVER = 10**9
"""Steps of a trial that does not end, and until its first evaluation after the beginning."""

CELLS = {
    "lstm": Cell.LSTM,
    "gru": Cell.GRU,
    "goru": Cell.GORU,
    "cornn": Cell.CORNN,
    "lem": Cell.LEM,
}
"""The kernels' cells of gated networks."""

SYNTHETIC = ("pixel_mnist", "ptb_chars")
"""Tasks whose batches are drawn at random here, in the shapes of their corpora."""


def make_config(workload: Workload, model: str, lane: int = 0, **fields: Any) -> TrialConfig:
    """Return a trial of a workload; lanes differ in learning rate and seed."""
    task = workload.task
    if "delay" in task:  # the copying task: little to evaluate
        task = task | {"train_size": None, "valid_size": 20, "test_size": 20}
    config = {"name": model, "hidden_size": workload.hidden_size, **FIELDS.get(model, {})}
    return TrialConfig.from_dict(
        {
            "task": task,
            "model": config | fields,
            "optimizer": {"name": "rmsprop", "lr": 1e-5 * (1 + lane / 100), "lr_orth": 1e-6},
            "training": {"steps": NEVER, "evaluate_every": NEVER, "log_every": 100},
            "seed": lane,
        }
    )


def make_training(config: TrialConfig, device: str) -> Training:
    """Return the training of a trial's first seed; a missing corpus is replaced by random data."""
    name = config.task.name
    if name not in SYNTHETIC:
        return Training(config, config.seed, device=device)
    with mock.patch.dict(TASKS, {name: _without_corpus(TASKS[name])}):
        return Training(config, config.seed, device=device)


def _without_corpus(task: type[Task]) -> type[Task]:
    class Random(task):  # type: ignore[valid-type, misc]  # a class that is only known here
        """The task with one random batch in place of its corpus."""

        baselines: dict[str, float] = {}  # noqa: RUF012  (a property of every task)

        def __init__(self, config: TaskConfig, data_root: Any = None) -> None:
            super().__init__(config, data_root)
            self.batch = random_batch(config)

        def train_batch(self, step: int, seed: int) -> Batch:
            return self.batch

        def evaluation(self, split: Split) -> Iterator[Batch]:
            yield self.batch

    return Random


def advance(training: Training) -> Repeated:
    """Return the work of training a trial alone, as its process does."""
    return Repeated(lambda steps: training.run(training.step + steps), training.device)


class Lanes:
    """The work of training lanes side by side: one step of it is a step of every lane."""

    def __init__(
        self, workload: Workload, model: str, lanes: int, device: str, *, capture: bool = True
    ) -> None:
        """Fill a group with trials that differ in learning rate and seed.

        With `capture` a step on a GPU is replayed as a CUDA graph, where the model allows it.

        Raises:
            ValueError: if trials of this kind cannot share a program.
        """
        trainings = [make_training(make_config(workload, model, i), device) for i in range(lanes)]
        self.group = Group(trainings[0], lanes, capture=capture)
        for training in trainings:
            self.group.join(training)

    def __call__(self, seconds: float) -> int:
        first = self.group.trainings[0]
        before = first.step
        while first.step == before:  # an evaluation comes before the first step
            self.group.advance(seconds)
        if any(training.is_finished for training in self.group.trainings):
            raise RuntimeError("a lane ended: its loss is not finite")
        return first.step - before


@contextmanager
def without_kernels() -> Iterator[None]:
    """Run every recurrence as a loop over time in PyTorch's operations."""
    with (
        mock.patch.object(scan, "is_available", return_value=False),
        mock.patch.object(gated, "is_available", return_value=False),
    ):
        yield


def is_in_kernels(model: str, hidden_size: int) -> bool:
    """Return whether a kernel is offered for a real network of this size."""
    cell = CELLS.get(model)
    return hidden_size <= (scan.LARGEST if cell is None else gated.CLUSTERS[cell][-1][0])

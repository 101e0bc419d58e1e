"""A model of two numbers, tasks whose curves are told in advance, and trainings of them."""

from __future__ import annotations

import dataclasses
import io
from math import inf
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from eigensweep.models.base import Model, ModelConfig, ParamGroup
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.tasks.base import Batch, Metric, Shapes, Task, TaskConfig
from eigensweep.training.training import Training


class LineConfig(ModelConfig):
    name: Literal["line"] = "line"
    hidden_size: int | None = 1
    broken: bool = False

    def free_parameters(self, shapes):
        return 3


class Line(Model):
    """y = w x + b. Its state is the sum of all inputs; its second output counts the updates."""

    Config = LineConfig

    def __init__(self, config, shapes):
        super().__init__(config, shapes)
        self.w, self.b = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(()))
        self.register_buffer("updates", torch.tensor(0.0))
        self.rates = None

    def forward(self, x, state=None):
        if self.config.broken:
            raise ZeroDivisionError("a bug in the model")
        state = x.new_zeros(x.shape[1], 1) if state is None else state
        y = self.w * x + self.b
        return torch.cat((y, self.updates.expand_as(y)), -1), state + x.sum(0)

    def states(self, x, state=None):
        raise NotImplementedError

    def recurrent_matrix(self):
        raise NotImplementedError

    def param_groups(self):
        return [ParamGroup("orth", [self.w]), ParamGroup("main", [self.b])]

    def after_update(self, learning_rates):
        self.rates = dict(learning_rates)
        self.updates += 1

    def penalty(self):
        return 0.0 * self.w

    def constraint_report(self):
        return {"slope": self.w, "infinite": self.w + inf}


class LinesConfig(TaskConfig):
    name: Literal["lines"] = "lines"
    batch_size: int = 4
    curve: dict[int, float] = Field({})
    """Validation loss after so many updates, in place of the true one."""
    test_curve: dict[int, float] = Field({})
    """The same of the test loss; default: `curve`."""
    better: str = "lower"
    bad_step: int | None = None
    """At this step an input is infinite, or the gradient is not a number and the loss is finite."""
    bad_gradient: bool = False

    shapes: ClassVar = Shapes(1, "values", 2, "all")
    sequence_length: ClassVar = 3
    steps_per_epoch: ClassVar = 10
    default_evaluate_every: ClassVar = 10
    baselines: ClassVar = {"error": 5.0}

    @property
    def metrics(self):
        return (Metric("error", ""), Metric("score", "", self.better))


class Lines(Task):
    """Learn y = 2 x + 1 from random x."""

    Config = LinesConfig

    def train_batch(self, step, seed):
        x = torch.randn(3, 4, 1, generator=torch.Generator().manual_seed(seed * 1000 + step))
        bad = step == self.config.bad_step
        if bad and not self.config.bad_gradient:
            x[0, 0] = inf
        return Batch(x, 2 * x + 1, mask=torch.tensor(True) if bad else None)

    def evaluation(self, split):
        lanes = 4 if split == "valid" else 2
        x = torch.linspace(-1, 1, 3 * lanes).reshape(3, lanes, 1)
        yield Batch(x, 2 * x + 1)

    def loss(self, logits, batch):
        loss = (logits[..., :1] - batch.y).square().mean()
        return loss if batch.mask is None else loss + (0 * logits[..., :1]).sqrt().sum()

    def scores(self, logits, batch):
        updates, curve = int(logits[0, 0, 1]), self.config.curve
        if batch.y.shape[1] == 2:
            curve = self.config.test_curve or curve
        loss = torch.tensor(curve.get(updates, float(self.loss(logits, batch))))
        return {"error": (3 * loss, 3), "score": (torch.tensor(float(updates)), 1)}


class TextConfig(TaskConfig):
    name: Literal["text"] = "text"
    piece: int = 5
    reset: bool = False
    """Whether lane 1 begins a new text at every second piece."""

    shapes: ClassVar = Shapes(6, "symbols", 6, "all")
    metrics: ClassVar = (Metric("cross_entropy", "nats"),)
    sequence_length: ClassVar = 5
    steps_per_epoch: ClassVar = 4
    default_evaluate_every: ClassVar = 4
    baselines: ClassVar = {"cross_entropy": 1.79}


class Text(Task):
    """Three lanes of a text of 20 symbols, in pieces, the state carried on: as Penn Treebank is."""

    Config = TextConfig

    def _piece(self, number):
        text = torch.randint(6, (21, 3), generator=torch.Generator().manual_seed(1))
        start = number * self.config.piece
        starts = torch.full((3,), number == 0)
        if self.config.reset and number % 2:
            starts[1] = True
        rows = text[start : start + self.config.piece + 1]
        return Batch(rows[:-1], rows[1:], starts=starts)

    def train_batch(self, step, seed):
        return self._piece(step % 4)

    def evaluation(self, split):
        for number in range(20 // self.config.piece):
            yield self._piece(number)

    def loss(self, logits, batch):
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.y.flatten())

    def scores(self, logits, batch):
        return {"cross_entropy": (self.loss(logits, batch) * batch.y.numel(), batch.y.numel())}


def trial(task=None, model=None, optimizer=None, **rest):
    content = {
        "task": {"name": "lines", **(task or {})},
        "model": {"name": "line", **(model or {})},
        "optimizer": {"lr": 0.05, **(optimizer or {})},
        "training": {"steps": 40, "evaluate_every": 10, "log_every": 4, **rest.pop("training", {})},
    }
    return TrialConfig.from_dict({**content, **rest})


def train_toy(config, seed=0, until=None):
    training = Training(config, seed)
    training.run(until)
    return training


def reload(training, config):
    """Return a new Training that goes on from a checkpoint of another, through a file."""
    file = io.BytesIO()
    torch.save(training.state_dict(), file)
    file.seek(0)
    other = Training(config, training.seed)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


TIMES = ("seconds", "timestamp_ms", "step_seconds", "step_times")
"""Keys of what was measured with a clock."""


def to_exact(tree):
    """Return a tree with tensors as bytes and without times, to be compared with ==."""
    if isinstance(tree, torch.Tensor):
        return tree.dtype, tree.shape, tree.numpy().tobytes()
    if dataclasses.is_dataclass(tree):
        return to_exact(dataclasses.asdict(tree))
    if isinstance(tree, dict):
        return {k: to_exact(v) for k, v in tree.items() if k not in TIMES}
    return [to_exact(v) for v in tree] if isinstance(tree, list | tuple) else tree

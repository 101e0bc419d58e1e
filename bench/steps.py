"""One training step of each network that is compared, over the same batch.

A step is all that a trial does between two batches: W from its parameters, forward, readout, loss,
backward, RMSprop (or the rule that a model itself asks for), and what the model does after an
update. Ours goes through its ordinary `forward`
and the task's own loss; the others take the input as floats and `cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import RMSprop
from torch.optim.optimizer import Optimizer

from bench.authors import TorchLSTM
from bench.loops import loop_of
from bench.workloads import Material, network
from eigensweep.models import Model
from eigensweep.models.base import ParamGroup, trainable

LEARNING_RATE = 1e-5
"""So low that no network leaves the state it starts in."""


@dataclass
class Step:
    """A network in training."""

    module: nn.Module
    model: Model | None
    """Whose penalty and whose `after_update` belong to a step."""
    loss: Callable[[nn.Module, Material], Tensor]

    def __post_init__(self) -> None:
        whole = [ParamGroup("main", list(self.module.parameters()))]
        groups = whole if self.model is None else self.model.param_groups()
        self.rates = {group.name: LEARNING_RATE for group in groups}
        ruled = [group for group in groups if group.rule is not None]
        free = [p for g in groups if g.rule is None for p in trainable(g.params)]
        self.optimizers: list[Optimizer] = [RMSprop(free, lr=LEARNING_RATE, alpha=0.9)]
        for group in ruled:
            assert group.rule is not None
            self.optimizers.append(group.rule([{"params": group.params, "lr": LEARNING_RATE}]))

    def on(self, material: Material) -> Callable[[], None]:
        """Return the step over a batch, to be taken as often as one likes."""

        def run() -> None:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
            loss = self.loss(self.module, material)
            torch.autograd.backward(loss if self.model is None else loss + self.model.penalty())
            for optimizer in self.optimizers:
                optimizer.step()
            if self.model is not None:
                with torch.no_grad():
                    self.model.after_update(self.rates)

        return run


def our_step(model: Model) -> Step:
    """Return the step of one of our models."""
    return Step(model, model, _our_loss)


def loop_step(model: Model) -> Step | None:
    """Return the step of the plain loop that belongs to a model; None where there is none."""
    loop = loop_of(model)
    return None if loop is None else Step(loop, loop.model, _plain_loss)


def lstm_step(hidden_size: int, material: Material) -> Step:
    """Return the step of `nn.LSTM` with a linear readout."""
    shapes = material.shapes
    torch.manual_seed(0)
    sizes = (shapes.input_size, hidden_size, shapes.output_size)
    return Step(TorchLSTM(*sizes, shapes.readout), None, _plain_loss)


def step_of(kind: str, name: str, hidden_size: int, material: Material) -> Step | None:
    """Return the step of a model's `ours` or `loop`."""
    model = network(name, hidden_size, material.shapes)
    return our_step(model) if kind == "ours" else loop_step(model)


def _our_loss(module: nn.Module, material: Material) -> Tensor:
    logits, _ = module(material.batch.x)
    return material.task.loss(logits, material.batch)


def _plain_loss(module: nn.Module, material: Material) -> Tensor:
    logits: Any = module(material.values)
    y = material.batch.y
    return cross_entropy(logits.flatten(0, -2), y.flatten())

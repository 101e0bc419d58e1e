"""One training step of each network that is compared, on the same batch.

A step is everything that a trial does between two batches: compute W from its parameters, forward,
readout, loss, backward, RMSprop (or the model's own update rule), and the model's `after_update`.
Our models use their ordinary `forward` and the task's own loss. The others take the input as floats
and PyTorch's `cross_entropy`.
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

from bench.authors import TorchGated
from bench.loops import loop_of
from bench.workloads import Material, network
from eigensweep.models import Model
from eigensweep.models.base import ParamGroup, trainable
from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.orthogonal import skew

LEARNING_RATE = 1e-5
"""So low that no network moves away from its initial weights."""


@dataclass
class Step:
    """A network with its optimizers and its loss."""

    module: nn.Module
    model: Model | None
    """The model whose penalty and `after_update` are part of the step; None if there is none."""
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
        """Return a function that makes one training step on this batch."""

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
    """Return the step of a model's plain loop; None if it has none."""
    loop = loop_of(model)
    return None if loop is None else Step(loop, loop.model, _plain_loss)


def lstm_step(
    hidden_size: int, material: Material, kind: type[nn.LSTM] | type[nn.GRU] = nn.LSTM
) -> Step:
    """Return the step of `nn.LSTM`, or of `nn.GRU`, with a linear readout."""
    shapes = material.shapes
    torch.manual_seed(0)
    sizes = (shapes.input_size, hidden_size, shapes.output_size)
    return Step(TorchGated(kind, *sizes, shapes.readout), None, _plain_loss)


def exponential_step(n: int) -> Callable[[], None]:
    """Return a function that computes exp(A), (n, n), and its gradient; A turns by up to 3.1."""
    torch.manual_seed(0)
    A = skew(torch.randn(n, n))
    A *= 3.1 / torch.linalg.matrix_norm(A, ord=2)
    A.requires_grad_()
    G = torch.randn(n, n)

    def run() -> None:
        torch.autograd.grad(exponential(A), A, G)

    return run


def step_of(kind: str, name: str, hidden_size: int, material: Material) -> Step | None:
    """Return the step of our model (`ours`) or of its plain loop (`loop`); None if it has none."""
    model = network(name, hidden_size, material.shapes)
    return our_step(model) if kind == "ours" else loop_step(model)


def _our_loss(module: nn.Module, material: Material) -> Tensor:
    logits, _ = module(material.batch.x)
    return material.task.loss(logits, material.batch)


def _plain_loss(module: nn.Module, material: Material) -> Tensor:
    logits: Any = module(material.values)
    y = material.batch.y
    return cross_entropy(logits.flatten(0, -2), y.flatten())

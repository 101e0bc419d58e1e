"""The least time that the matrix products of a training step can take, on this machine, now.

The recurrence is B x n times n x n at each step, forward and backward, and a weight gradient of
n x τB times τB x n. Their rates are measured in the same rounds as the networks, as `torch.mm`
reaches them with nothing else to do; the limit is the count of operations divided by them.
Projections of input and readout count at the same rates, though they are narrower; symbols are
looked up, not multiplied. What a network does besides, and how it makes W, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eigensweep.models import Model

OPERATIONS = 1e9
"""Floating-point operations in one measurement of a rate, about."""
LONGEST = 1 << 13
"""Most rows in the weight gradient's product: as many as stay near the core."""
OTHER_PRODUCTS = {"goru": 2}
"""Products of n x n at each step besides `recurrent_matrix`'s."""


class Product:
    """A matrix product that is taken over and over: a variant of a round."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.out = left.new_empty(len(left), right.shape[1])
        once = 2 * left.numel() * right.shape[1]
        self.repeats = max(1, round(OPERATIONS / once))
        self.operations = self.repeats * once

    def __call__(self) -> None:
        for _ in range(self.repeats):
            torch.mm(self.left, self.right, out=self.out)


def step_product(batch: int, n: int) -> Product:
    """Return the product of one time step, B x n times n x n."""
    return Product(torch.randn(batch, n), torch.randn(n, n))


def weight_product(batch: int, n: int, length: int) -> Product:
    """Return the product of the weight gradient, n x τB times τB x n."""
    rows = min(batch * length, LONGEST)
    return Product(torch.randn(rows, n).T, torch.randn(rows, n))


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of a training step."""

    states: int
    """Of states and of their gradients."""
    weights: int
    """Of the gradients of weights."""


def operations(model: Model, batch: int, length: int) -> Operations:
    """Return the operations of one training step; of structured matrices as if they were dense."""
    with torch.no_grad():
        W = model.recurrent_matrix()
    n, steps = model.hidden_size, batch * length
    recurrent = W.numel() * (4 if W.is_complex() else 1)
    recurrent += OTHER_PRODUCTS.get(model.config.name, 0) * n * n
    encoder = entries(model, "U") if model.shapes.input_kind == "values" else 0
    readout = entries(model, "V") * (1 if model.shapes.readout == "all" else 1 / length)
    products = steps * (recurrent + encoder + readout)
    return Operations(
        states=round(4 * products - 2 * steps * encoder),  # the input takes no gradient
        weights=round(2 * products),
    )


def entries(model: Model, name: str) -> int:
    """Return how many real numbers a matrix of a model has, 0 if there is none of that name."""
    matrix = getattr(model, name, None)
    if not isinstance(matrix, Tensor):
        return 0
    return matrix.numel() * (2 if matrix.is_complex() else 1)

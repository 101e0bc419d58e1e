"""The shortest time in which this machine can compute the matrix products of a training step.

Each time step of the recurrence is a product of B x n and n x n, forward and backward. The weight
gradient is a product of n x τB and τB x n. The rates at which `torch.mm` computes these products
are measured in the same rounds as the networks. The limit is the number of operations divided by
these rates. The projections of input and readout count at the same rates, though they are narrower.
Symbols are looked up, not multiplied. Everything else is left out, such as the nonlinearity and the
computation of W.

The compiled steps can be faster than `torch.mm` with few rows. So the same operations are also
divided by the time of a step, as a share of the core's peak: the most multiplications and additions
of float32 numbers that it makes in registers (bench/peak.cpp). It is measured in the same rounds.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eigensweep.models import Model
from eigensweep.models.layered import LayeredNetwork
from eigensweep.models.recurrence.native.library import load_library

OPERATIONS = 1e9
"""About so many floating-point operations are timed to measure a rate."""
LONGEST = 1 << 13
"""Most rows in the weight gradient's product, so that they stay in the processor's cache."""
OTHER_PRODUCTS = {"goru": 2}
"""Products with n x n matrices at each time step, besides that with `recurrent_matrix`."""


class Product:
    """A matrix product that is repeated; calling it is one measurement."""

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


class Peak:
    """Multiplications and additions in a core's registers; calling it is one measurement."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._multiply_add = library.multiply_add
        self._multiply_add.argtypes = (ctypes.c_int64,)
        self._multiply_add.restype = ctypes.c_float
        self.rounds = round(OPERATIONS / library.operations())
        self.operations = self.rounds * library.operations()

    def __call__(self) -> float:
        return float(self._multiply_add(self.rounds))


def peak() -> Peak | None:
    """Return the measurement of a core's peak; None if there is no C++ compiler."""
    library = load_library(Path(__file__).with_name("peak.cpp"))
    return None if library is None else Peak(library)


@dataclass(frozen=True)
class Operations:
    """Number of floating-point operations of a training step."""

    states: int
    """For the states and their gradients."""
    weights: int
    """For the gradients of the weights."""

    @property
    def all(self) -> int:
        return self.states + self.weights


def operations(model: Model, batch: int, length: int) -> Operations:
    """Return the operations of one training step; structured matrices count as dense ones."""
    with torch.no_grad():
        W = model.recurrent_matrix()
    n, steps = model.hidden_size, batch * length
    recurrent = W.numel() * (4 if W.is_complex() else 1)
    recurrent += OTHER_PRODUCTS.get(model.config.name, 0) * n * n
    if isinstance(model, LayeredNetwork):  # W is diagonal, and no product
        recurrent = sum(p.numel() for p in model.layers.parameters() if p.dim() > 1)
    encoder = entries(model, "U") if model.shapes.input_kind == "values" else 0
    readout = entries(model, "V") * (1 if model.shapes.readout == "all" else 1 / length)
    products = steps * (recurrent + encoder + readout)
    return Operations(
        states=round(4 * products - 2 * steps * encoder),  # the input takes no gradient
        weights=round(2 * products),
    )


def entries(model: Model, name: str) -> int:
    """Return the number of real numbers in a matrix of a model; 0 if it has no such matrix."""
    matrix = getattr(model, name, None)
    if not isinstance(matrix, Tensor):
        return 0
    return matrix.numel() * (2 if matrix.is_complex() else 1)

"""Initial draws of matrices without a constraint. All of them use torch's global generator."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import torch
from torch import Tensor

Initial = Literal["small_uniform", "glorot_uniform", "glorot_normal", "kaiming_normal"]
"""How a matrix starts: uniform in ±0.01, or scaled by its fans."""


def draw(rows: int, columns: int, initial: Initial) -> Tensor:
    """Return a (rows, columns) matrix that maps `columns` inputs to `rows` outputs.

    >>> _ = torch.manual_seed(0)
    >>> bool(draw(3, 5, "small_uniform").abs().max() <= 0.01)
    True
    """
    if initial == "small_uniform":
        return uniform(rows, columns, 0.01)
    fans = rows + columns
    if initial == "glorot_uniform":
        return uniform(rows, columns, sqrt(6 / fans) if fans else 0.0)
    if initial == "glorot_normal":
        return torch.randn(rows, columns) * (sqrt(2 / fans) if fans else 0.0)
    return torch.randn(rows, columns) * (sqrt(2 / columns) if columns else 0.0)


def uniform(rows: int, columns: int, limit: float) -> Tensor:
    """Return a matrix with entries uniform in ±limit."""
    return (2 * torch.rand(rows, columns) - 1) * limit


def semi_orthogonal(rows: int, columns: int) -> Tensor:
    """Return a random matrix with orthonormal columns, or rows if it is wider than tall."""
    Q, R = torch.linalg.qr(torch.randn(max(rows, columns), min(rows, columns)))
    Q = Q * R.diagonal().sign()  # signs by diag(R): uniform over all such matrices
    return Q if rows >= columns else Q.T

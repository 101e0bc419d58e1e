"""Initial draws of matrices without a constraint. All of them use torch's global generator."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import torch
from torch import Tensor

Initial = Literal[
    "small_uniform",
    "wide_uniform",
    "fan_in_uniform",
    "glorot_uniform",
    "glorot_normal",
    "kaiming_normal",
    "tiny_normal",
    "truncated_normal",
    "orthogonal",
]
"""How a matrix starts: uniform in ±0.01, in ±0.1, or in ±1/√columns as PyTorch's own layers; scaled
by its fans; normal with deviation 0.001, or 0.1 and cut at twice that; with orthonormal columns."""


def draw(rows: int, columns: int, initial: Initial) -> Tensor:
    """Return a (rows, columns) matrix that maps `columns` inputs to `rows` outputs.

    >>> _ = torch.manual_seed(0)
    >>> bool(draw(3, 5, "small_uniform").abs().max() <= 0.01)
    True
    """
    if initial == "small_uniform":
        return uniform(rows, columns, 0.01)
    if initial == "wide_uniform":
        return uniform(rows, columns, 0.1)
    if initial == "fan_in_uniform":
        return uniform(rows, columns, 1 / sqrt(columns) if columns else 0.0)
    if initial == "tiny_normal":
        return torch.randn(rows, columns) * 0.001
    if initial == "truncated_normal":
        return torch.nn.init.trunc_normal_(torch.empty(rows, columns), std=0.1, a=-0.2, b=0.2)
    if initial == "orthogonal":
        return semi_orthogonal(rows, columns)
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

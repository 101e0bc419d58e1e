"""The exponential of a skew-symmetric matrix and its gradient, in matrix products alone.

Source: scaling and squaring with the Taylor polynomial of degree 8 in three products, by Bader,
Blanes & Casas, "Computing the matrix exponential with an optimized Taylor polynomial
approximation", Mathematics 7 (2019), section 2.
"""

from __future__ import annotations

from math import ceil, inf, log2, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST_NORM = {torch.float64: 0.0499, torch.float32: 0.58}
"""2-norm up to which degree 8 is exact to the last digit of a type."""

ROOT = sqrt(177)
X1, X2, X3 = (1 + ROOT) / 132, (1 + ROOT) / 528, 2 / 3
X4, X5 = (29 * ROOT - 271) / 210, 11 * (ROOT - 1) / 840
X6, X7 = 11 * (ROOT - 9) / 3360, (89 - ROOT) / 2240
Y2 = (857 - 58 * ROOT) / 630
"""Coefficients that make the polynomial of `_Exponential` that of Taylor."""


def exponential(A: Tensor) -> Tensor:
    """Return exp(A), orthogonal, for a skew-symmetric A.

    Beyond 256 rows float32 is computed in float64. Only first derivatives are available.

    >>> exponential(torch.tensor([[0.0, -torch.pi], [torch.pi, 0.0]])).diagonal().round().tolist()
    [-1.0, -1.0]
    """
    precise = A.double() if A.shape[-1] > 256 else A
    return _exponential(precise, LARGEST_NORM[A.dtype])[0].to(A.dtype)


def _exponential(A: Tensor, largest: float) -> tuple[Tensor, ...]:
    return _Exponential.apply(A, largest)  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """(exp(A), and what its gradient needs) of lanes of skew-symmetric matrices (..., n, n).

    What it needs are A/2ˢ, its second and fourth term, and each matrix that was squared.
    """

    @staticmethod
    def forward(A: Tensor, largest: float) -> tuple[Tensor, ...]:
        A2 = A @ A
        s = _squarings(A2, largest)
        A, A2 = A / 2**s, A2 / 4**s
        A4 = A2 @ (X1 * A + X2 * A2)
        C, D = _factors(A, A2, A4)
        Y = _add_diagonal(A + Y2 * A2 + C @ D, 1.0)
        squared = []
        for _ in range(s):
            squared.append(Y)
            Y = Y @ Y
        return Y, A, A2, A4, *squared

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor, *_: Tensor) -> tuple[Tensor, None]:
        A, A2, A4, *squared = ctx.saved_tensors
        for Y in reversed(squared):
            G = G @ Y.mT + Y.mT @ G
        C, D = _factors(A, A2, A4)
        dC, dD = G @ D.mT, C.mT @ G
        dA4 = dC + X7 * dD
        dB = A2.mT @ dA4
        dA2 = Y2 * G + X3 * dC + X6 * dD + dA4 @ (X1 * A + X2 * A2).mT + X2 * dB
        dA = G + X5 * dD + X1 * dB + dA2 @ A.mT + A.mT @ dA2
        return dA / 2 ** len(squared), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], A: Tensor, largest: float
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        assert in_dims[0] is not None
        outputs = _exponential(A.movedim(in_dims[0], 0), largest)
        return outputs, (0,) * len(outputs)


def _factors(A: Tensor, A2: Tensor, A4: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of the third product, whose terms have degree 3 to 8."""
    return X3 * A2 + A4, _add_diagonal(X5 * A + X6 * A2 + X7 * A4, X4)


def _add_diagonal(M: Tensor, value: float) -> Tensor:
    return M + value * torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)


def _squarings(A2: Tensor, largest: float) -> int:
    """Return the s for which A/2ˢ is small enough, given A²: |A|₂² = |A²|₂ <= |A²|₁."""
    norm = sqrt(A2.abs().sum(-2).max().item()) if A2.numel() else 0.0
    return ceil(log2(norm / largest)) if largest < norm < inf else 0

"""The exponential of a skew-symmetric matrix and its gradient.

Source: scaling and squaring with diagonal Padé approximants, Higham, "The scaling and squaring
method for the matrix exponential revisited", SIAM J. Matrix Anal. Appl. 26 (2005), section 2. For
a skew-symmetric A an approximant p(A) p(-A)⁻¹ is orthogonal whatever its degree: p(A) = E + O with
E even and symmetric, O odd and skew-symmetric. The norms up to which a degree serves are its own.
"""

from __future__ import annotations

from math import ceil, comb, log2, perm
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eigensweep.models.matrices.orthogonal import polish

LARGEST_NORM = {
    torch.float32: {3: 0.53, 5: 2.19, 7: 4.5, 9: 7.1},
    torch.float64: {3: 0.0149, 5: 0.254, 7: 0.952, 9: 2.11},
}
"""2-norm of A up to which a degree turns by no wrong angle, to 2e-7 or 1e-16 of the angle."""


def exponential(A: Tensor) -> Tensor:
    """Return exp(A), orthogonal, for a skew-symmetric A.

    The gradient is the skew-symmetric part of the gradient for free entries, because A stays
    skew-symmetric. Only first derivatives are available.

    >>> exponential(torch.tensor([[0.0, -torch.pi], [torch.pi, 0.0]])).diagonal().round().tolist()
    [-1.0, -1.0]
    """
    return _exponential(A)[0]


def _exponential(A: Tensor) -> tuple[Tensor, ...]:
    return _Exponential.apply(A)  # type: ignore[no-untyped-call]


class _Exponential(torch.autograd.Function):
    """(exp(A), and what its gradient needs) of lanes of skew-symmetric matrices (..., n, n).

    What it needs are A/2ˢ, its even powers (..., k, n, n), Z in O = A Z, p(-A) decomposed, and each
    matrix that was squared.
    """

    @staticmethod
    def forward(A: Tensor) -> tuple[Tensor, ...]:
        A, powers, s = _scale_down(A)
        c = _coefficients(2 * len(powers) + 1)
        even, Z = _combine(powers, c[::2]), _combine(powers, c[1::2])
        odd = A @ Z
        LU, pivots, _ = torch.linalg.lu_factor_ex(even - odd)
        Y = torch.linalg.lu_solve(LU, pivots, even + odd, left=False)
        squared = []
        for k in range(1, s + 1):
            squared.append(Y)
            Y = Y @ Y
            if k == s or k % 8 == 0:  # each square doubles what rounding has left
                Y = polish(Y)
        return Y, A, torch.stack(powers, -3), Z, LU, pivots, *squared

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor, *_: None) -> Tensor:
        Y, A, stacked, Z, LU, pivots, *squared = ctx.saved_tensors
        for Y in reversed(squared):
            G = G @ Y.mT + Y.mT @ G
        # With N = E - O and Y = N⁻¹ Nᵀ: dY = N⁻¹ (dNᵀ - dN Y).
        H = torch.linalg.lu_solve(LU, pivots, G, adjoint=True)
        dN = H.mT - H @ Y.mT
        dE, dO = _symmetric(dN), -_skew(dN)
        powers = stacked.unbind(-3)
        c = _coefficients(2 * len(powers) + 1)
        dZ = -_symmetric(A @ dO)
        gradients = [c[2 * k] * dE + c[2 * k + 1] * dZ for k in range(1, len(powers) + 1)]
        for k in range(len(powers) - 1, 0, -1):  # powers[k] = powers[0] powers[k - 1]
            of_last = _symmetric(powers[0] @ gradients[k])
            gradients[0] += of_last if k == 1 else _symmetric(powers[k - 1] @ gradients[k])
            gradients[k - 1] += of_last
        dA = dO @ Z - 2 * (A @ gradients[0])
        return _skew(dA) / 2.0 ** len(squared)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], A: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        assert in_dims[0] is not None
        outputs = _exponential(A.movedim(in_dims[0], 0))
        return outputs, (0,) * len(outputs)


def _coefficients(degree: int) -> list[float]:
    """Return those of p, from the constant one on.

    >>> _coefficients(3) == [1, 1 / 2, 1 / 10, 1 / 120]
    True
    """
    return [comb(degree, k) / perm(2 * degree, k) for k in range(degree + 1)]


def _scale_down(A: Tensor) -> tuple[Tensor, list[Tensor], int]:
    """Return A/2ˢ, its even powers as far as the degree needs them, and the number s of squarings.

    |A|₂ is at most the k-th root of |Aᵏ|₁, the more closely the larger k.
    """
    limits, square = LARGEST_NORM[A.dtype], A @ A
    norm = _one_norm(square) ** 0.5
    s = ceil(log2(max(norm, 2.0**10))) - 10  # so that no power overflows
    if s:
        A, square, norm = A / 2.0**s, square / 4.0**s, norm / 2.0**s
    powers = [square]
    for degree, limit in limits.items():
        if norm <= limit or degree == max(limits):
            break
        powers.append(square @ powers[-1])
        norm = min(norm, _one_norm(powers[-1]) ** (0.5 / len(powers)))
    more = ceil(log2(norm / limit)) if norm > limit else 0
    powers = [P / 4.0 ** (k * more) for k, P in enumerate(powers, 1)]
    return A / 2.0**more, powers, s + more


def _one_norm(P: Tensor) -> float:
    """Return |P|₁, the largest over lanes; columns that are not finite do not count."""
    if not P.numel():
        return 0.0
    sums = P.abs().sum(-2)
    return torch.where(sums.isfinite(), sums, 0).max().item()


def _combine(powers: list[Tensor], coefficients: list[float]) -> Tensor:
    """Return c_0 I + c_1 A² + c_2 A⁴ + ..., over as many powers as there are."""
    first, *rest = coefficients
    total = torch.eye(powers[0].shape[-1]).to(powers[0]) * first
    for c, P in zip(rest, powers, strict=True):
        total = total.add(P, alpha=c)
    return total


def _symmetric(M: Tensor) -> Tensor:
    return (M + M.mT) / 2


def _skew(M: Tensor) -> Tensor:
    return (M - M.mT) / 2

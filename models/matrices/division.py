"""Division by large matrices on a CPU, made of products.

LAPACK solves triangular systems at half of the rate of products, or less, and factors with pivots
at a quarter of it. So what is divided by more than once is inverted, and without pivots where none
are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 256
"""Rows from which on products are worth their calls."""
LEAF = 64
"""Rows up to which a block is left to LAPACK."""
GROWTH = 8.0
"""Largest entry of inverses, by its absolute value, up to which pivots gain no digit, mostly."""
ERROR = 1000.0
"""Largest error of a vector that is divided and multiplied again, in units of the last place, up to
which an inverse made without pivots is taken. Those of exponentials have errors of 10 to 40."""


class Divisor:
    """An (n, n) matrix N to divide by, from the right. A large one is inverted.

    Without `pivots` it is inverted by products, unless blocks turn out to be nearly singular, or
    the inverse to be imprecise.
    """

    def __init__(self, N: Tensor, pivots: bool) -> None:
        large, self.inverse = len(N) >= LARGE, None
        if large and not pivots:
            inverse, sizes = _invert(N)
            sizes.append(inverse.abs().amax())
            is_small = torch.stack(sizes).amax() <= GROWTH
            self.inverse = inverse if is_small and _is_precise(inverse, N) else None
        if self.inverse is None:
            self.LU, self.pivots, _ = torch.linalg.lu_factor_ex(N)
            if large:
                self.inverse = self.divide(torch.eye(len(N), dtype=N.dtype))
                del self.LU, self.pivots

    def divide(self, B: Tensor) -> Tensor:
        """Return B N⁻¹."""
        if self.inverse is not None:
            return B @ self.inverse
        return torch.linalg.lu_solve(self.LU, self.pivots, B, left=False)

    def divide_by_transpose(self, B: Tensor) -> Tensor:
        """Return B N⁻ᵀ."""
        if self.inverse is not None:
            return B @ self.inverse.mT
        return torch.linalg.lu_solve(self.LU, self.pivots, B, left=False, adjoint=True)


def inverse_by_products(M: Tensor) -> Tensor:
    """Return M⁻¹ of an (n, n) matrix whose symmetric part is positive definite.

    Such a matrix needs no pivots, and halves of it are inverted in the same way.

    >>> inverse_by_products(torch.tensor([[1.0, -1.0], [1.0, 1.0]])).tolist()
    [[0.5, 0.5], [-0.5, 0.5]]
    """
    return _invert(M)[0]


def _is_precise(X: Tensor, N: Tensor) -> bool:
    """Tell whether a vector and its transpose survive X, which is to be N⁻¹, and N."""
    v = torch.ones_like(N[0])
    v[1::2] = -1
    errors = torch.stack((v @ X @ N, N @ (X @ v))) - v
    return bool(errors.abs().amax() <= ERROR * torch.finfo(N.dtype).eps)


def _invert(M: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return M⁻¹ by products, and the largest entry of each inverse that LAPACK made for it.

    A block is nearly singular where one of those is large.
    """
    n = len(M)
    if n <= LEAF:
        X = torch.linalg.inv_ex(M).inverse
        return X, [X.abs().amax()] if n else []
    h = (n // 2 + 7) // 8 * 8
    X, C = torch.empty_like(M, memory_format=torch.contiguous_format), M[h:, :h]
    P, sizes = _invert(M[:h, :h])
    Q = P @ M[:h, h:]
    S, more = _invert(torch.addmm(M[h:, h:], C, Q, alpha=-1))
    torch.mm(Q, S, out=X[:h, h:]).neg_()
    torch.mm(S @ C, P, out=X[h:, :h]).neg_()
    torch.addmm(P, Q, X[h:, :h], alpha=-1, out=X[:h, :h])
    X[h:, h:] = S
    return X, [*sizes, *more]

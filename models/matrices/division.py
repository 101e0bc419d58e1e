"""Division by large matrices on a CPU, made of products.

LAPACK solves triangular systems at half of the rate of products, or less. So what is divided by
more than once is inverted, and without pivots where none are needed.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGE = 256
"""Rows from which on products are worth their calls."""
LEAF = 64
"""Rows up to which a block is left to LAPACK."""


class Divisor:
    """An (n, n) matrix N to divide by, from the right. A large one is inverted.

    It is `definite` if its symmetric part is known to be positive definite and far from singular.
    """

    def __init__(self, N: Tensor, definite: bool) -> None:
        large = len(N) >= LARGE
        self.inverse = inverse_by_products(N) if large and definite else None
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
    n = len(M)
    if n <= LEAF:
        return torch.linalg.inv_ex(M).inverse
    h = (n // 2 + 7) // 8 * 8
    X, C = torch.empty_like(M, memory_format=torch.contiguous_format), M[h:, :h]
    P = inverse_by_products(M[:h, :h])
    Q = P @ M[:h, h:]
    S = inverse_by_products(torch.addmm(M[h:, h:], C, Q, alpha=-1))
    torch.mm(Q, S, out=X[:h, h:]).neg_()
    torch.mm(S @ C, P, out=X[h:, :h]).neg_()
    torch.addmm(P, Q, X[h:, :h], alpha=-1, out=X[:h, :h])
    X[h:, h:] = S
    return X

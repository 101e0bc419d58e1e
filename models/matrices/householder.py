"""Products of Householder reflections in compact form.

Source: Mhammedi, Hellicar, Rahman & Bailey, ICML 2017, sections 3 and 4. The reflections are the
columns u_1 ... u_r of a matrix (n, r), of which only the lower triangle counts: u_k begins with
k - 1 zeros. H_k = I - 2 u_k u_kᵀ / |u_k|² does not depend on the length of u_k.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST = 1e-12
"""A column shorter than this reflects nothing and is not normalised."""


def reflections(u: Tensor) -> Tensor:
    """Return H_1 H_2 ... H_r, (n, n): the last column acts first.

    It is I - u M⁻¹ uᵀ, with M the strict upper triangle of uᵀ u and half its diagonal.

    >>> reflections(torch.tensor([[3.0], [4.0]])).mul(25).round().tolist()
    [[7.0, -24.0], [-24.0, -7.0]]
    """
    u = u.tril()
    gram = u.mT @ u
    squares = gram.diagonal(dim1=-2, dim2=-1)
    squares = torch.where(squares > SHORTEST**2, squares, torch.ones_like(squares))
    M = gram.triu(1) + torch.diag_embed(squares / 2)
    eye = torch.eye(u.shape[-2], dtype=u.dtype, device=u.device)
    return eye - u @ torch.linalg.solve_triangular(M, u.mT, upper=True)


def normalise(u: Tensor) -> Tensor:
    """Return u masked to its lower triangle, with columns of length 1; a zero column stays.

    >>> normalise(torch.tensor([[3.0, 5.0], [4.0, -2.0]])).tolist()
    [[0.6000000238418579, 0.0], [0.800000011920929, -1.0]]
    """
    u = u.tril()
    return u / u.norm(dim=-2, keepdim=True).clamp(min=SHORTEST)


def reflection_parameters(n: int, count: int) -> int:
    """Return how many entries `count` columns have on and below the diagonal."""
    return count * n - count * (count - 1) // 2

"""Skew-symmetric and orthogonal matrices: the Cayley map, projections, initial values."""

from __future__ import annotations

from math import pi
from typing import Any, Literal

import torch
from torch import Tensor

from eigensweep.common.autograd import Function
from eigensweep.models.matrices.division import LARGE, inverse_by_products
from eigensweep.models.matrices.initial import semi_orthogonal
from eigensweep.models.matrices.mirror import less_transpose

InitialSkew = Literal["cayley", "henaff", "random"]
"""`cayley`: rotations by t ~ U[0, π/2) under the Cayley map; `henaff`: entries U(-π, π);
`random`: the logarithm of a rotation drawn uniformly from all of them (Haar)."""


def skew(X: Tensor) -> Tensor:
    """Return A = triu(X, 1) - triu(X, 1)ᵀ: only what is above X's diagonal counts."""
    return less_transpose(X.triu(1))


def cayley(A: Tensor) -> Tensor:
    """Return (I + A)⁻¹ (I - A), orthogonal for a skew-symmetric A.

    Large matrices are solved in float64, whatever the type of A. A lane's result does not depend on
    the other lanes.

    >>> cayley(torch.tensor([[0.0, -1.0], [1.0, 0.0]])).tolist()
    [[0.0, 1.0], [-1.0, 0.0]]
    """
    return _Cayley.apply(A)  # type: ignore[no-untyped-call]


class _Cayley(Function):
    """W = (I + A)⁻¹ (I - A), so that dW = -(I + W) dA (I + W) / 2; it has all derivatives."""

    @staticmethod
    def forward(A: Tensor) -> Tensor:
        n = A.shape[-1]
        eye = torch.eye(n, dtype=torch.float64 if n > 512 else A.dtype, device=A.device)
        if A.device.type != "cpu" or A.dtype != torch.float32 or n < LARGE:
            return solve(eye + A, eye - A).to(A.dtype)
        return torch.stack([_large_cayley(a) for a in A.reshape(-1, n, n)]).reshape(A.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        (W,) = ctx.saved_tensors
        Wt = W.mT
        M = G + Wt @ G
        return -0.5 * (M + M @ Wt)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], A: Tensor) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return _Cayley.apply(A.movedim(in_dims[0], 0)), 0  # type: ignore[no-untyped-call]


def _large_cayley(A: Tensor) -> Tensor:
    """Return the Cayley map of a skew-symmetric (n, n) matrix, in float32, through float64."""
    M = A.double()
    M.diagonal().add_(1)
    if A.abs().sum(0).max() > 1e3:  # the rounding of `inverse_by_products` grows with |A|²
        return solve(M, M.mT).float()
    W = inverse_by_products(M).mul_(2)
    W.diagonal().sub_(1)
    return W.float()


def solve(M: Tensor, B: Tensor) -> Tensor:
    """Return M⁻¹ B; not finite where M is singular, for that is not looked at on the host."""
    return torch.linalg.solve_ex(M, B).result


def nearest_orthogonal(M: Tensor) -> Tensor:
    """Return Y Z* of the decomposition M = Y Σ Z*: the orthogonal matrix nearest to M.

    For a complex M it is unitary; where M is not finite it is NaN.

    >>> nearest_orthogonal(torch.tensor([[0.0, -3.0], [2.0, 0.0]])).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    finite = M.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    precise = M.to(torch.promote_types(M.dtype, torch.float64))
    Y, _, Zh = torch.linalg.svd(torch.where(finite, precise, 0))
    return torch.where(finite, Y @ Zh, torch.nan).to(M.dtype)


def singular_values(M: Tensor) -> Tensor:
    """Return the singular values of M, (..., n, n), the largest first; NaN where M is not finite.

    >>> singular_values(torch.tensor([[0.0, -3.0], [2.0, 0.0]])).tolist()
    [3.0, 2.0]
    """
    finite = M.isfinite().all(-1).all(-1)[..., None]
    values = torch.linalg.svdvals(torch.where(finite[..., None], M, 0))
    return torch.where(finite, values, torch.nan)


def reorthogonalise(W: Tensor) -> Tensor:
    """Return the orthogonal matrix nearest to W, (..., n, n), or the unitary one, by products only.

    It is exact up to rounding where W has singular values from 0.85 to 1.15.

    >>> reorthogonalise(torch.tensor([[0.0, -0.95], [1.02, 0.0]])).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """
    precise = W.to(torch.promote_types(W.dtype, torch.float64))
    for _ in range(5):
        precise = polish(precise)
    return precise.to(W.dtype)


def polish(W: Tensor) -> Tensor:
    """Return W (3I - W*W) / 2, which squares the error of a nearly orthogonal W.

    >>> polish(torch.tensor([[0.0, -0.999], [1.0, 0.0]]))
    tensor([[ 0.0000, -1.0000],
            [ 1.0000,  0.0000]])
    """
    return 1.5 * W - 0.5 * W @ (W.mH @ W)


def orthogonality_error(W: Tensor) -> Tensor:
    """Return max |W*W - I|, W real or complex, and 0 for a matrix without entries."""
    if W.shape[-1] == 0:
        return W.new_zeros(()).abs()
    eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    return (W.mH @ W - eye).abs().amax((-2, -1))


def initial_skew(n: int, initial: InitialSkew) -> Tensor:
    """Return an (n, n) matrix for `skew`, its entries above the diagonal drawn as named."""
    if initial == "random":
        return rotation_logarithm(random_rotation(n)).triu(1)
    planes = n // 2
    if initial == "cayley":
        angles = -torch.tan(torch.rand(planes) * pi / 4)
    else:
        angles = (2 * torch.rand(planes) - 1) * pi
    X = torch.zeros(n, n)
    first = 2 * torch.arange(planes)
    X[first, first + 1] = angles
    return X


def random_rotation(n: int) -> Tensor:
    """Return a matrix drawn uniformly from the rotations SO(n)."""
    Q = semi_orthogonal(n, n)
    if n and torch.linalg.det(Q) < 0:
        Q[0] = -Q[0]
    return Q


def rotation_logarithm(Q: Tensor) -> Tensor:
    """Return the skew-symmetric A with exp(A) = Q, a rotation with simple eigenvalues."""
    values, vectors = torch.linalg.eig(Q.double())
    A = (vectors * (1j * values.angle()) @ torch.linalg.inv(vectors)).real
    return ((A - A.mT) / 2).to(Q.dtype)

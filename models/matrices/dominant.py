"""The dominant eigenvalue of a large matrix, followed from one training step to the next.

A block of vectors is multiplied by the matrix and made orthonormal again; the eigenvalues of the
matrix on the space they span come near those of largest modulus (subspace iteration with
Rayleigh-Ritz: Saad, "Numerical Methods for Large Eigenvalue Problems", 2011, section 5.2).

Departure: ENRNN's program computes all eigenvalues of T after every update. Here this is done at
most `EVERY` updates apart. Usually another pair of eigenvalues is already in the block when it
becomes the largest. If it overtakes unnoticed, T is divided by the modulus of the former largest
pair until the next decomposition of T. The spectral radius is then above 1 for that time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from eigensweep.common.autograd import Function, lanes_in_front
from eigensweep.models.matrices.spectral_radius import dominant_eigenvalue

WORTH_IT = 128
"""Rows from which on following is faster than decomposing."""

VECTORS, PRODUCTS = 16, 16
"""In the block; with it at each step."""

EVERY = 5
"""Most steps from one decomposition to the next."""

UNSURE = 0.02
"""Residual |T u - λ u| / |λ| above which the matrix is decomposed at once."""


class DominantEigenvalue(nn.Module):
    """The dominant eigenvalue of a matrix with s rows, as followed so far; part of a checkpoint."""

    block: Tensor
    value: Tensor
    """float64 (real, imaginary); NaN until the first update."""
    age: Tensor
    """Updates since the matrix was decomposed."""

    def __init__(self, s: int) -> None:
        super().__init__()
        block = torch.arange(1.0, s * VECTORS + 1).reshape(s, VECTORS).cos()
        self.register_buffer("block", torch.linalg.qr(block)[0])
        self.register_buffer("value", torch.full((2,), torch.nan, dtype=torch.float64))
        self.register_buffer("age", torch.tensor(EVERY))

    @torch.no_grad()
    def update(self, T: Tensor, needed: Tensor) -> None:
        """Follow the eigenvalue to a new T, (s, s), where `needed`, a bool."""
        block, value, age = _Followed.apply(T, needed, self.block, self.value, self.age)  # type: ignore[no-untyped-call]
        self.block.copy_(block)
        self.value.copy_(value)
        self.age.copy_(age)


class _Followed(Function):
    """(block, value, age) after a step, of lanes (...) of matrices. Has no gradient."""

    @staticmethod
    def forward(
        T: Tensor, needed: Tensor, block: Tensor, value: Tensor, age: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        block, value, age = block.clone(), value.clone(), age.clone()
        for index in needed.nonzero().tolist():
            lane = tuple(index)
            matrix = T[lane].detach().cpu()
            ritz, block[lane] = _ritz_value(matrix, block[lane].to(matrix))
            if ritz is None or age[lane] + 1 >= EVERY:
                ritz, age[lane] = dominant_eigenvalue(matrix.double())[0], 0
            else:
                age[lane] += 1
            value[lane] = torch.view_as_real(ritz)
        return block, value, age

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        lanes = lanes_in_front(info.batch_size, in_dims, args)
        return _Followed.apply(*lanes), (0, 0, 0)  # type: ignore[no-untyped-call]


def _ritz_value(T: Tensor, block: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the dominant eigenvalue of T on the block's space, or None if unsure, and the block.

    The block that is returned is T's, a step further on; where it is not finite the old one.
    """
    old = block
    for _ in range(PRODUCTS // 4):
        for _ in range(4):
            block = T @ block
        block, _ = torch.linalg.qr(block)
    if not block.isfinite().all():
        return None, old
    image = T @ block
    values, vectors = torch.linalg.eig((block.mT @ image).double())
    best = values.abs().argmax()
    value, y = values[best], vectors[:, best : best + 1]
    residual = ((image.double().to(y.dtype) - value * block.to(y.dtype)) @ y).norm()
    return (value if residual <= UNSURE * value.abs() else None), block

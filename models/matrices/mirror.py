"""Sums of a matrix and its transpose, and products that are symmetric or skew-symmetric.

Those of large matrices on a CPU are compiled, tile by tile. PyTorch's own sum misses the cache at
every entry: at n = 1024 it takes half as long as a product of two such matrices.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from eigensweep.common.autograd import Function
from eigensweep.models.recurrence.native.library import load_library, use_native

SOURCE = Path(__file__).with_name("mirror.cpp")
LARGE = 128
"""Rows from which on compiled tiles are worth a call."""
STRIPE = 256
"""Rows of a stripe of `mirrored_product`."""


def symmetric(M: Tensor) -> Tensor:
    """Return (M + Mᵀ) / 2 of an (n, n) matrix."""
    return _combine(M, 1, 0.5)


def skew_part(M: Tensor) -> Tensor:
    """Return (M - Mᵀ) / 2 of an (n, n) matrix."""
    return _combine(M, -1, 0.5)


def mirrored_product(A: Tensor, B: Tensor, sign: Literal[1, -1] = 1) -> Tensor:
    """Return A B, (n, n), of which it is known that its transpose is itself, or -itself.

    Of a large product only what lies above the diagonal is computed, in stripes of rows.
    """
    n = len(A)
    library = _library(A) if n >= 2 * STRIPE else None
    if library is None:
        return A @ B
    C = torch.empty_like(A, memory_format=torch.contiguous_format)
    for i in range(0, n, STRIPE):
        torch.mm(A[i : i + STRIPE], B[:, i:], out=C[i : i + STRIPE, i:])
    call = library.reflect_float if A.dtype == torch.float32 else library.reflect_double
    call(ctypes.c_void_p(C.data_ptr()), len(C), ctypes.c_double(sign))
    return C


def less_transpose(M: Tensor) -> Tensor:
    """Return M - Mᵀ of matrices (..., n, n); it has all derivatives.

    >>> less_transpose(torch.tensor([[5.0, 2.0], [0.0, 5.0]])).tolist()
    [[0.0, 2.0], [-2.0, 0.0]]
    """
    return _LessTranspose.apply(M)  # type: ignore[no-untyped-call]


class _LessTranspose(Function):
    """M - Mᵀ, which is its own adjoint."""

    @staticmethod
    def forward(M: Tensor) -> Tensor:
        return _combine(M, -1, 1.0) if M.dim() == 2 else M - M.mT

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        return less_transpose(G)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], M: Tensor) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return less_transpose(M.movedim(in_dims[0], 0)), 0


def _combine(M: Tensor, sign: int, factor: float) -> Tensor:
    """Return factor (M + sign Mᵀ)."""
    library = _library(M) if len(M) >= LARGE else None
    if library is None:
        return (M + sign * M.mT) * factor
    M = M.contiguous()
    combined = torch.empty_like(M)
    call = library.combine_float if M.dtype == torch.float32 else library.combine_double
    numbers = ctypes.c_double(sign), ctypes.c_double(factor)
    call(ctypes.c_void_p(M.data_ptr()), ctypes.c_void_p(combined.data_ptr()), len(M), *numbers)
    return combined


def _library(M: Tensor) -> ctypes.CDLL | None:
    return load_library(SOURCE) if use_native(SOURCE, None, M=M) else None

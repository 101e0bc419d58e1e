"""Sums of a matrix and its transpose.

Those of large matrices on a CPU are compiled, tile by tile. PyTorch's own sum misses the cache at
every entry: at n = 1024 it takes half as long as a product of two such matrices.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigensweep.models.recurrence.native.library import load_library, use_native

SOURCE = Path(__file__).with_name("mirror.cpp")
LARGE = 128
"""Rows from which on compiled tiles are worth a call."""


def symmetric(M: Tensor) -> Tensor:
    """Return (M + Mᵀ) / 2 of an (n, n) matrix."""
    return _combine(M, 1, 0.5)


def skew_part(M: Tensor) -> Tensor:
    """Return (M - Mᵀ) / 2 of an (n, n) matrix."""
    return _combine(M, -1, 0.5)


def less_transpose(M: Tensor) -> Tensor:
    """Return M - Mᵀ of matrices (..., n, n); it has all derivatives.

    >>> less_transpose(torch.tensor([[5.0, 2.0], [0.0, 5.0]])).tolist()
    [[0.0, 2.0], [-2.0, 0.0]]
    """
    return _LessTranspose.apply(M)  # type: ignore[no-untyped-call]


class _LessTranspose(torch.autograd.Function):
    """M - Mᵀ, which is its own adjoint."""

    @staticmethod
    def forward(M: Tensor) -> Tensor:
        return _combine(M, -1, 1.0) if M.dim() == 2 else M - M.mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> Tensor:
        return less_transpose(G)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], M: Tensor) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return less_transpose(M.movedim(in_dims[0], 0)), 0


def _combine(M: Tensor, sign: int, factor: float) -> Tensor:
    """Return factor (M + sign Mᵀ)."""
    library = load_library(SOURCE) if len(M) >= LARGE and use_native(SOURCE, None, M=M) else None
    if library is None:
        return (M + sign * M.mT) * factor
    M = M.contiguous()
    combined = torch.empty_like(M)
    call = library.combine_float if M.dtype == torch.float32 else library.combine_double
    numbers = ctypes.c_double(sign), ctypes.c_double(factor)
    call(ctypes.c_void_p(M.data_ptr()), ctypes.c_void_p(combined.data_ptr()), len(M), *numbers)
    return combined

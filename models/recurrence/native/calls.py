"""How tensors are handed to compiled steps: panels, padded rows, addresses, and named fields."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigensweep.models.recurrence.native.library import load_library

Field = tuple[str, Any]


@dataclass(frozen=True)
class CompiledSteps:
    """The steps of one library for one dtype."""

    run: Callable[[Any], int]
    """Takes a reference to the library's `Call`."""
    panel: int
    """Numbers in a vector of the processor: matrices are packed in panels as wide."""

    @classmethod
    def load(cls, source: Path, dtype: torch.dtype) -> CompiledSteps:
        """Return the steps of `source` for float32 or float64.

        Raises:
            RuntimeError: if there is no library; `use_native` tells beforehand.
        """
        library = load_library(source)
        if library is None:
            raise RuntimeError(f"{source.name} could not be compiled; the log says why")
        run = library.step_float if dtype == torch.float32 else library.step_double
        return cls(run, library.vector_bytes() // dtype.itemsize)


def pointers(*names: str) -> tuple[Field, ...]:
    """Return fields of a `ctypes.Structure` that hold addresses of tensors."""
    return tuple((name, ctypes.c_void_p) for name in names)


def integers(*names: str) -> tuple[Field, ...]:
    """Return fields of a `ctypes.Structure` that hold sizes, strides and choices."""
    return tuple((name, ctypes.c_int64) for name in names)


def numbers(*names: str) -> tuple[Field, ...]:
    """Return fields of a `ctypes.Structure` that hold real numbers."""
    return tuple((name, ctypes.c_double) for name in names)


def addresses(**tensors: Tensor | None) -> dict[str, int | None]:
    """Return the address of each tensor by its name: a null pointer for None."""
    return {name: None if t is None else t.data_ptr() for name, t in tensors.items()}


def lane_strides(**tensors: Tensor | None) -> dict[str, int]:
    """Return as `lane_<name>` how many entries the lanes of each tensor are apart."""
    return {f"lane_{name}": 0 if t is None else t.stride(0) for name, t in tensors.items()}


def row_length(n: int, panel: int) -> int:
    """Return n in whole panels, and one more where rows would crowd into the same cache sets.

    >>> row_length(138, 16), row_length(512, 16)
    (144, 528)
    """
    whole = n + -n % panel
    return whole + panel if whole % (16 * panel) == 0 else whole


def pack(W: Tensor, panel: int) -> Tensor:
    """Return the columns of W, (M, k, n), in panels: (M, panels, k, panel), the last padded by 0.

    >>> pack(torch.tensor([[[1, 2, 3], [4, 5, 6], [7, 8, 9]]]), 2).tolist()
    [[[[1, 2], [4, 5], [7, 8]], [[3, 0], [6, 0], [9, 0]]]]
    """
    padded = pad(W, (0, -W.shape[-1] % panel)).contiguous()
    return padded.view(*W.shape[:2], -1, panel).transpose(1, 2).contiguous()


def pack_rows(W: Tensor, panel: int) -> Tensor:
    """Return the rows of W, (M, n, k), in panels: `pack(W.mT, panel)`, with W read in order.

    >>> pack_rows(torch.tensor([[[1, 4, 7], [2, 5, 8], [3, 6, 9]]]), 2).tolist()
    [[[[1, 2], [4, 5], [7, 8]], [[3, 0], [6, 0], [9, 0]]]]
    """
    padded = pad(W, (0, 0, 0, -W.shape[1] % panel))
    return padded.reshape(len(W), -1, panel, W.shape[2]).mT.contiguous()

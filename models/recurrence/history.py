"""Memory for the states of all time steps.

A large new block costs a page fault every 4 KB: a tenth of a training step, if the states take
100 MB. So the last blocks are kept for the next training step.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from torch import Tensor

_SMALL = 1 << 20
"""Below so many bytes the allocator of the process does as well."""

MOST_SPARE = 2
"""Blocks that are kept: some steps hold the gradient to their input besides the states."""

_spare: list[np.ndarray] = []


def empty_history(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised tensor with the dtype and device of `like`.

    A large one on the CPU takes the block given back last among those that fit, if there is one.
    """
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _SMALL:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    fitting = [i for i, spare in enumerate(_spare) if size + 64 <= spare.nbytes <= 2 * size]
    block = _spare.pop(fitting[-1]) if fitting else np.empty(size + 64, np.uint8)
    start = -block.ctypes.data % 64
    view = block[start : start + size]
    weakref.finalize(view, _give_back, block).atexit = False
    return torch.from_numpy(view).view(like.dtype).view(shape)


def _give_back(block: np.ndarray) -> None:
    _spare.append(block)
    del _spare[:-MOST_SPARE]

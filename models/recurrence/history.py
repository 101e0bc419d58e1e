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

_spare: dict[int, np.ndarray] = {}
"""By id, so that threads, and what is freed within them, take and give each block once."""


def empty_history(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Return an uninitialised tensor with the dtype and device of `like`.

    A large one on the CPU takes the block given back last among those that fit, if there is one.
    """
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or size < _SMALL:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    block = _take(size + 64, 2 * size)
    if block is None:
        block = np.empty(size + 64, np.uint8)
    start = -block.ctypes.data % 64
    view = block[start : start + size]
    weakref.finalize(view, _give_back, block).atexit = False
    return torch.from_numpy(view).view(like.dtype).view(shape)


def _take(least: int, most: int) -> np.ndarray | None:
    """Take the newest spare block with so many bytes, if there is one."""
    for name, spare in reversed(_spare.copy().items()):
        if least <= spare.nbytes <= most and _spare.pop(name, None) is not None:
            return spare
    return None


def _give_back(block: np.ndarray) -> None:
    _spare[id(block)] = block
    for name in list(_spare)[:-MOST_SPARE]:
        _spare.pop(name, None)

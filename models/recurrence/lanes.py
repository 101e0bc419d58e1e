"""Lanes: networks side by side in one call, as `torch.vmap` of a recurrence asks for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eigensweep.common.autograd import lanes_in_front


def on_folded_lanes(
    function: type[torch.autograd.Function],
    size: int,
    in_dims: tuple[int | None, ...],
    args: tuple[Any, ...],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Apply `function` once, with the mapped axis of each tensor made part of its axis of lanes.

    This is the body of a `vmap` rule of `function`. Every tensor of `args` and every output has
    lanes in front. The first argument is x; it may have a single lane that all share.
    """
    x, *rest = lanes_in_front(size, in_dims, args)
    lanes = rest[0].shape[1]
    shared = in_dims[0] is None and x.shape[1] == 1
    x = x[:1] if shared else x.expand(size, lanes, *x.shape[2:])
    folded = [t.flatten(0, 1) if isinstance(t, Tensor) else t for t in (x, *rest)]
    outputs = function.apply(*folded)  # type: ignore[no-untyped-call]
    return tuple(o.reshape(size, lanes, *o.shape[1:]) for o in outputs), (0,) * len(outputs)


def spread_input(x: Tensor, lanes: int, symbols: int | None = None) -> Tensor:
    """Return x with so many lanes, each contiguous, and symbols as int64.

    Raises:
        IndexError: if `symbols` is given, x is on a CPU, and a symbol is not below `symbols`.
    """
    if not x.is_floating_point():
        x = x.long()
        if symbols is not None and x.device.type == "cpu":
            low, high = x.aminmax()
            if low < 0 or high >= symbols:
                raise IndexError(f"symbols are 0 to {symbols - 1}; x has {low} to {high}")
    return x.contiguous().expand(lanes, *x.shape[1:])

"""A factor on a gradient alone."""

from __future__ import annotations

from torch import Tensor


def multiply_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, through which a gradient passes times `factor`."""
    if factor == 1 or not x.is_floating_point():
        return x
    constant = x.detach()
    return constant + factor * (x - constant)

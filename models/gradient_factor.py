"""A factor on a gradient alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from eigensweep.common.autograd import Function


def multiply_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x, through which a gradient passes times `factor`.

    It is a view of x, so change nothing in place there. It has no forward derivative.
    """
    if factor == 1 or not x.is_floating_point():
        return x
    return _Factor.apply(x, factor)  # type: ignore[no-untyped-call]


class _Factor(Function):
    """The identity, whose gradient is multiplied by a factor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.factor * gradient, None

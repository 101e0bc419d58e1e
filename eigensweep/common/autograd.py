"""The base of all functions with a gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Final, NoReturn

import torch
from torch import Tensor

BY_POSITION: Final = Signature([Parameter("arguments", Parameter.VAR_POSITIONAL)])


class Function(torch.autograd.Function):
    """A function of PyTorch's whose arguments are all given by position.

    PyTorch asks for the signature of `forward` at each call, to add default values. Python would
    make it anew each time, which takes longer than many operations on a small matrix. Arguments
    of ours have no defaults, so one signature serves all functions.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.forward.__signature__ = BY_POSITION  # type: ignore[attr-defined]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what `backward` needs. Default: nothing."""


def first_derivatives_only(words: str) -> Callable[..., NoReturn]:
    """Return the `backward` of a backward pass: it raises RuntimeError with these words."""

    def backward(ctx: Any, *grads: Any) -> NoReturn:
        raise RuntimeError(words)

    return staticmethod(backward)


def lanes_in_front(size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a `vmap` rule, the mapped axis of each tensor first.

    A tensor without such an axis gets one of this size, and all its lanes share their memory.
    """

    def move(arg: Any, dim: int | None) -> Any:
        if not isinstance(arg, Tensor):
            return arg
        return arg.expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)

    return list(map(move, args, in_dims))


def fold_lanes(size: int, in_dims: tuple[int | None, ...], args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a `vmap` rule, the mapped axis part of each tensor's first axis."""
    moved = lanes_in_front(size, in_dims, args)
    return [arg.flatten(0, 1) if isinstance(arg, Tensor) else arg for arg in moved]

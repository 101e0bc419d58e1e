"""The base of all functions with a gradient of their own."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, Final, NoReturn

import torch

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

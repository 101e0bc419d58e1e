"""The base of all functions with a gradient of their own."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch


class Function(torch.autograd.Function):
    """A function of PyTorch's whose arguments are all given by position.

    At each call PyTorch asks Python for the signature of `forward`, and Python makes it anew: about
    as long as an operation on a small matrix takes. Here it is made once, as `__signature__`.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.forward.__signature__ = signature(cls.forward)  # type: ignore[attr-defined]

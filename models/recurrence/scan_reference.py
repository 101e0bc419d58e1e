"""The readable linear recurrence h_t = a_t ⊙ h_{t-1} + b_t: any dtype, any device, any derivative.

The fast one keeps the signature and is tested against it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def scan(a: Tensor, b: Tensor, h0: Tensor, *, paired: bool = False) -> Tensor:
    """Return h at every step, (τ, B, n), starting from h0, (B, n).

    b is (τ, B, n), and a is (τ, B, n), or (n,) where it is the same at every step. With `paired`,
    units 2i and 2i + 1 are real and imaginary part of a complex unit.

    >>> a, b, h0 = torch.tensor([0.5]), torch.ones(3, 1, 1), torch.zeros(1, 1)
    >>> scan(a, b, h0).flatten().tolist()
    [1.0, 1.5, 1.75]
    """
    if paired:
        a, b, h0 = (as_complex(part) for part in (a, b, h0))
    h, H = h0, []
    for a_t, b_t in zip(a.expand(b.shape), b, strict=True):
        h = a_t * h + b_t
        H.append(h)
    states = torch.stack(H)
    return as_pairs(states) if paired else states


def as_complex(pairs: Tensor) -> Tensor:
    """Return complex numbers, (..., n), of real and imaginary parts side by side, (..., 2n).

    >>> as_complex(torch.tensor([1.0, 2.0])).tolist()
    [(1+2j)]
    """
    return torch.view_as_complex(torch.unflatten(pairs, -1, (-1, 2)))


def as_pairs(numbers: Tensor) -> Tensor:
    """Return real and imaginary parts side by side, (..., 2n), of complex numbers, (..., n)."""
    return torch.view_as_real(numbers).flatten(-2)

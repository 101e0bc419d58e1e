"""The readable complex recurrence h_t = modReLU(U x_t + W h_{t-1}; b): any derivative.

States are complex, (B, n). What meets the outside is real: U is (2n, m), the real parts of n rows
and then the imaginary parts, and V is (p, 2n), which reads [Re h; Im h].
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eigensweep.models.recurrence.reference import project

PairedActivation = Literal["smoothed_modrelu", "shifted_modrelu"]
"""modReLU of complex z: as in the uRNN program, smooth at zero; and as in the EUNN program."""


class Form(NamedTuple):
    """The numbers in z · max(|z|₊ + b, 0) / (|z|₊ + below), |z|₊ = sqrt(|z|² + inside) + shift."""

    inside: float
    shift: float
    below: float


FORMS: dict[PairedActivation, Form] = {
    "smoothed_modrelu": Form(inside=1e-5, shift=0.0, below=1e-5),
    "shifted_modrelu": Form(inside=0.0, shift=0.01, below=0.0),
}


def complex_states(
    x: Tensor, U: Tensor, W: Tensor, b: Tensor, *, activation: PairedActivation, h0: Tensor
) -> Tensor:
    """Return h at every step, complex (τ, B, n), starting from h0, complex (B, n).

    x is int64 (τ, B) or float (τ, B, m), U (2n, m), W complex (n, n) and b (n,).
    """
    Z = torch.complex(*project(x, U, None).chunk(2, -1))
    Wt, h, H = W.mT, h0, []
    for Ux in Z.unbind(0):
        h = complex_modrelu(Ux + h @ Wt, b, activation)
        H.append(h)
    return torch.stack(H)


def complex_modrelu(z: Tensor, b: Tensor, activation: PairedActivation) -> Tensor:
    """Return z / |z| · max(|z| + b, 0) in the form named, which is 0 and has a slope at z = 0.

    >>> complex_modrelu(torch.tensor([3 + 4j]), torch.tensor(-1.0), "shifted_modrelu")
    tensor([2.4012+3.2016j])
    """
    form = FORMS[activation]
    smooth = form.inside > 0
    size = (z.real.square() + z.imag.square() + form.inside).sqrt() if smooth else z.abs()
    size = size + form.shift
    return z * (torch.relu(size + b) / (size + form.below))

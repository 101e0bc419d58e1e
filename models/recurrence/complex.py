"""The fast complex recurrence, run as a real one of twice the size.

Real and imaginary part of a unit stand side by side. W becomes a real (2n, 2n) matrix of blocks
[[a, -b], [b, a]], and modReLU acts on pairs of units. `ungated` runs it as any other recurrence.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigensweep.models.recurrence import ungated
from eigensweep.models.recurrence.complex_reference import PairedActivation


def recur(
    x: Tensor,
    U: Tensor,
    W: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    activation: PairedActivation,
    readout: Literal["all", "last"] = "all",
    h0: Tensor,
    chunk: int | None = None,
    backend: ungated.Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logits, last h): V [Re h_t; Im h_t] + c at every step, or at the last one.

    Logits are (τ, B, p) or (B, p), c is (p,), and V and the others are as in `complex_reference`.
    `chunk` and `backend` are those of `ungated.recur`. First derivatives only.

    Raises:
        ValueError: if shapes or dtypes do not fit one another.
    """
    _check(x, U, W, b, V, c, h0)
    logits, h = ungated.recur(
        x,
        interleave(U.mT).mT,
        paired_matrix(W),
        b.unsqueeze(-1).expand(*b.shape, 2).flatten(-2),
        interleave(V),
        c,
        activation=activation,
        readout=readout,
        h0=torch.stack((h0.real, h0.imag), -1).flatten(-2),
        chunk=chunk,
        backend=backend,
    )
    return logits, torch.complex(*torch.unflatten(h, -1, (-1, 2)).unbind(-1))


def _check(x: Tensor, U: Tensor, W: Tensor, b: Tensor, V: Tensor, c: Tensor, h0: Tensor) -> None:
    n, m, p = W.shape[-1], (x.shape[-1] if x.is_floating_point() else U.shape[-1]), len(V)
    real, both = W.dtype.to_real(), W.dtype.to_complex()
    expected = {
        "W": (W, (n, n), both),
        "U": (U, (2 * n, m), real),
        "b": (b, (n,), real),
        "V": (V, (p, 2 * n), real),
        "c": (c, (p,), real),
        "h0": (h0, (*x.shape[1:2], n), both),
    }
    for name, (tensor, shape, dtype) in expected.items():
        if tensor.shape != shape or tensor.dtype != dtype:
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)}; "
                f"W of {n} hidden units and x ask for {dtype} {shape}"
            )


def interleave(v: Tensor) -> Tensor:
    """Return rows [Re; Im], (..., 2n), with the two parts of a unit side by side.

    >>> interleave(torch.tensor([1, 3, 2, 4])).tolist()
    [1, 2, 3, 4]
    """
    return torch.unflatten(v, -1, (2, -1)).mT.flatten(-2)


def paired_matrix(W: Tensor) -> Tensor:
    """Return the real (2n, 2n) matrix that does to pairs (Re h, Im h) what W does to h.

    >>> paired_matrix(torch.tensor([[1 + 2j]])).tolist()
    [[1.0, -2.0], [2.0, 1.0]]
    """
    blocks = torch.unflatten(torch.stack((W.real, -W.imag, W.imag, W.real), -1), -1, (2, 2))
    return blocks.transpose(-3, -2).flatten(-4, -3).flatten(-2)

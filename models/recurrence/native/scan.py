"""The compiled steps of the linear recurrence."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from eigensweep.models.recurrence.history import empty_history
from eigensweep.models.recurrence.native.calls import CompiledSteps, addresses, integers, pointers

SOURCE = Path(__file__).with_name("scan.cpp")


class Call(ctypes.Structure):
    """`struct Call` of scan.cpp: the arguments of one call, in the same order."""

    _fields_ = (
        *pointers("H", "G", "dP", "dQ", "B", "P", "Q", "start"),
        *integers("lanes", "steps", "size", "constant", "threads"),
    )


def forward(a: Tensor, b: Tensor, start: Tensor, paired: bool) -> Tensor:
    """Return the states, (M, τ, B, n); shapes as in `scan`, lanes first."""
    H, (P, Q) = empty_history(tuple(b.shape), like=b), _factors(a, start, paired)
    _call(b, H=H, B=b, P=P, Q=Q, start=start, constant=a.dim() == 2)
    return H


def backward(
    d: Tensor, a: Tensor, start: Tensor, H: Tensor, paired: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients to b, to a, and to h_0, from that to the states."""
    G, (P, Q) = empty_history(tuple(d.shape), like=d), _factors(a, start, paired)
    constant = a.dim() == 2
    dP = torch.zeros_like(P) if constant else empty_history(tuple(d.shape), like=d)
    dQ = None if Q is None else torch.zeros_like(Q)
    _call(d, H=H, G=G, dP=dP, dQ=dQ, B=d, P=P, Q=Q, start=start, constant=constant)
    first, g = (P if constant else P[:, 0]), G[:, 0]
    if Q is None or dQ is None:
        return G, (dP.sum(1) if constant else dP), first * g
    real, imaginary = (_pairs(part.sum(1)) for part in (dP, dQ))
    da = torch.stack((real.sum(-1), imaginary[..., 1] - imaginary[..., 0]), -1).flatten(-2)
    return G, da, first * g - Q * _pairs(g).flip(-1).flatten(-2)


def _factors(a: Tensor, start: Tensor, paired: bool) -> tuple[Tensor, Tensor | None]:
    """Return P and Q of scan.cpp: for every row of the batch where a is the same at every step."""
    if a.dim() > 2:
        return a, None

    def every_row(factor: Tensor) -> Tensor:
        return factor.unsqueeze(1).expand(start.shape).contiguous()

    if not paired:
        return every_row(a), None
    real, imaginary = _pairs(a).unbind(-1)
    P = torch.stack((real, real), -1).flatten(-2)
    return every_row(P), every_row(torch.stack((-imaginary, imaginary), -1).flatten(-2))


def _pairs(numbers: Tensor) -> Tensor:
    return torch.unflatten(numbers, -1, (-1, 2))


def _call(like: Tensor, *, constant: bool, **tensors: Tensor | None) -> None:
    given = {name: tensors.get(name) for name in ("H", "G", "dP", "dQ", "B", "P", "Q", "start")}
    assert all(t is None or t.is_contiguous() for t in given.values())
    lanes, steps, batch, n = like.shape
    call = Call(
        **addresses(**given),
        lanes=lanes,
        steps=steps,
        size=batch * n,
        constant=constant,
        threads=torch.get_num_threads(),
    )
    CompiledSteps.load(SOURCE, like.dtype).run(ctypes.byref(call))

"""The fast linear recurrence h_t = a_t ⊙ h_{t-1} + b_t, with its own backward.

The gradient to b is the same recurrence, backwards in time. On a CPU compiled steps run both, one
pass over the memory each. Elsewhere log₂ τ passes do, each over all time steps at once: after pass
k a step has taken up the 2^k steps before it (Hillis & Steele 1986). Inside, every tensor has an
axis of lanes in front: M networks side by side. `torch.vmap` becomes part of that axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eigensweep.common.autograd import Function, first_derivatives_only
from eigensweep.models.recurrence.lanes import on_folded_lanes
from eigensweep.models.recurrence.native import scan as native
from eigensweep.models.recurrence.native.library import use_native
from eigensweep.models.recurrence.scan_reference import as_complex, as_pairs

Backend = Literal["torch", "native"]
"""What runs the steps: PyTorch, many at once, or compiled steps on a CPU."""


def scan(
    a: Tensor, b: Tensor, h0: Tensor, *, paired: bool = False, backend: Backend | None = None
) -> Tensor:
    """Return h at every step, (τ, B, n), as `scan_reference.scan` does.

    With `paired`, a is the same at every step, (n,). `backend` runs the steps (default: the
    compiled one, where it can be used), which changes no more than rounding. a, b and h0 take
    gradients, first derivatives only: for a second one `scan_reference` has the same function in
    plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    _check(a, b, h0, paired)
    how = How(paired, native=use_native(native.SOURCE, backend, a=a))
    (H,) = _Scan.apply(*(t.unsqueeze(0) for t in (b, a, h0)), how)  # type: ignore[no-untyped-call]
    return H.squeeze(0)


@dataclass(frozen=True)
class How:
    """The arguments that are no tensors."""

    paired: bool
    native: bool


class _Scan(Function):
    """(b, a, h_0, how) to (states,), lanes in front."""

    @staticmethod
    def forward(b: Tensor, a: Tensor, start: Tensor, how: How) -> tuple[Tensor]:
        b = b.expand(len(a), *b.shape[1:]).contiguous()
        run = native.forward if how.native else _forward
        return (run(a.contiguous(), b, start.contiguous(), how.paired),)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor]) -> None:
        b, a, start, ctx.how = inputs
        ctx.shared = len(b) < len(a)
        ctx.save_for_backward(a, start, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        db, *rest = _ScanGradients.apply(*grads, *ctx.saved_tensors, ctx.how)  # type: ignore[no-untyped-call]
        return (db.sum(0, keepdim=True) if ctx.shared else db, *rest, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_Scan, info.batch_size, in_dims, args)


class _ScanGradients(Function):
    """The backward pass: gradients of b, a and h_0, lanes in front."""

    @staticmethod
    def forward(d: Tensor, a: Tensor, start: Tensor, H: Tensor, how: How) -> tuple[Tensor, ...]:
        run = native.backward if how.native else _backward
        d = d.expand(H.shape).contiguous()
        return run(d, a.contiguous(), start.contiguous(), H.contiguous(), how.paired)

    backward = first_derivatives_only(
        "the fast recurrence has first derivatives only; take second ones through "
        "eigensweep.models.recurrence.scan_reference, as Model.states does"
    )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_ScanGradients, info.batch_size, in_dims, args)


def _forward(a: Tensor, b: Tensor, start: Tensor, paired: bool) -> Tensor:
    if paired:
        return as_pairs(_forward(as_complex(a), as_complex(b), as_complex(start), False))
    a = _by_step(a)
    first = torch.addcmul(b[:, 0], a[:, 0], start)
    return _by_doubling(a, torch.cat((first.unsqueeze(1), b[:, 1:]), 1))


def _backward(
    d: Tensor, a: Tensor, start: Tensor, H: Tensor, paired: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if paired:
        d, a, start, H = (as_complex(part) for part in (d, a, start, H))
        db, da, dstart = (as_pairs(part) for part in _backward(d, a, start, H, False))
        return db, da, dstart
    every = _by_step(a).conj()
    later = every if a.dim() == 2 else torch.cat((every[:, :1], every[:, 1:].flip(1)), 1)
    g = _by_doubling(later, d.flip(1)).flip(1)
    da = torch.cat((start.unsqueeze(1), H[:, :-1]), 1).conj() * g
    return g, (da.sum((1, 2)) if a.dim() == 2 else da), every[:, 0] * g[:, 0]


def _by_step(a: Tensor) -> Tensor:
    """Return a as (M, τ, B, n), or (M, 1, 1, n) where it is the same at every step."""
    return a[:, None, None] if a.dim() == 2 else a


def _by_doubling(a: Tensor, h: Tensor) -> Tensor:
    """Return the states that begin with h[:, 0], where h[:, 1:] holds b; a[:, 0] has no effect."""
    h, reach = h.clone(), 1
    while reach < h.shape[1]:
        if a.shape[1] == 1:
            h[:, reach:] += a * h[:, :-reach]
            a = a * a
        else:
            h[:, reach:] += a[:, reach:] * h[:, :-reach]
            a = torch.cat((a[:, :reach], a[:, reach:] * a[:, :-reach]), 1)
        reach *= 2
    return h


def _check(a: Tensor, b: Tensor, h0: Tensor, paired: bool) -> None:
    """Raise ValueError unless what the steps are given fits."""
    n = b.shape[-1] if b.dim() else 0
    if b.dim() != 3 or b.numel() == 0 or not b.is_floating_point() or (paired and n % 2):
        even = ", n even" if paired else ""
        raise ValueError(
            f"b is float (τ, B, n){even}, and not empty; it is {b.dtype} {tuple(b.shape)}"
        )
    wanted = [(n,)] if paired else [(n,), tuple(b.shape)]
    given = {"a": (a, wanted), "h0": (h0, [tuple(b.shape[1:])])}
    for name, (tensor, shapes) in given.items():
        if tuple(tensor.shape) not in shapes or (tensor.dtype, tensor.device) != (
            b.dtype,
            b.device,
        ):
            raise ValueError(
                f"{name} is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; b asks for "
                f"{b.dtype} {' or '.join(map(str, shapes))} on {b.device}"
            )

"""The fast recurrence h_t = f(U x_t + W h_{t-1} + b), read out as V h_t + c, with its own backward.

Only the states are stored, because the slope of f follows from h. Time is cut into chunks that stay
in cache. In each chunk the input is projected, the steps are run and the states are read out; the
backward pass does the same. So the incoming gradient is that of the logits, and the states are the
only (τ, B, n) tensor. Inside, every tensor has an axis of lanes in front: M networks side by side.
`torch.vmap` becomes part of that axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eigensweep.common.autograd import Function, first_derivatives_only
from eigensweep.models.recurrence.checks import check_each, check_input
from eigensweep.models.recurrence.complex_reference import FORMS, PairedActivation
from eigensweep.models.recurrence.cuda import scan
from eigensweep.models.recurrence.cuda.scan import CudaPairedSteps, CudaSteps
from eigensweep.models.recurrence.history import empty_history
from eigensweep.models.recurrence.lanes import on_folded_lanes, spread_input
from eigensweep.models.recurrence.native import paired, ungated
from eigensweep.models.recurrence.native.library import use_native
from eigensweep.models.recurrence.paired import PairedSteps
from eigensweep.models.recurrence.steps import (
    Activation,
    ClippedSteps,
    Parameters,
    Steps,
    TorchSteps,
)

Backend = Literal["torch", "native", "cuda"]
"""What runs the loop over time: PyTorch, compiled steps on a CPU, or a kernel on an NVIDIA GPU."""

CHUNK_BYTES = 2 << 20
"""States in a chunk of time on a CPU: near a core's cache, and worth a call."""


def recur(
    x: Tensor,
    U: Tensor | None,
    W: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    activation: Activation | PairedActivation,
    readout: Literal["all", "last"] = "all",
    h0: Tensor | None = None,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logits, last h): V h_t + c at every step, (τ, B, p), or at the last one, (B, p).

    x is int64 (τ, B), symbols in place of one-hot vectors, or float (τ, B, m), or without U float
    (τ, B, n), which enters the state as it is; h0 is (B, n), by default zero. `chunk` time steps
    are worked on at a time (default: about 2 MB of states) and `backend` runs them (default: the
    compiled one of the device, where it can be used). Neither changes more than rounding.

    Values, parameters and h0 take gradients, first derivatives only: for a second one
    `eigensweep.models.recurrence.reference` has the states in plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.

    >>> x, U, W = torch.tensor([[0], [1], [1]]), torch.eye(2), torch.zeros(2, 2)
    >>> b, V, c = torch.zeros(2), torch.eye(2), torch.zeros(2)
    >>> recur(x, U, W, b, V, c, activation="relu")[0].squeeze(1).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    if U is None:
        if x.shape[2:] != W.shape[-1:]:
            raise ValueError(
                f"without U, x enters the state as it is: float (τ, B, {len(W)}); "
                f"it is {x.dtype} {tuple(x.shape)}"
            )
        U = W.new_empty(len(W), 0)
    if h0 is None:
        h0 = W.new_zeros(x.shape[1:2].numel(), W.shape[-1])
    _check(x, U, W, b, V, c, h0)
    how = How(activation, readout, chunk, backend, keep=torch.is_grad_enabled())
    logits, h, _ = _Recurrence.apply(*(t.unsqueeze(0) for t in (x, U, W, b, V, c, h0)), how)  # type: ignore[no-untyped-call]
    return logits.squeeze(0), h.squeeze(0)


@dataclass(frozen=True)
class How:
    """The arguments that are no tensors."""

    activation: Activation | PairedActivation
    readout: Literal["all", "last"]
    chunk: int | None
    backend: Backend | None
    keep: bool
    """Whether the states of all steps are kept for a backward pass."""

    def steps(self, parameters: Parameters) -> Steps:
        """Return the steps of the backend asked for, by default the fastest that can run here.

        Raises:
            ValueError: if the backend asked for cannot run here.
        """
        W, activation = parameters.W, self.activation
        of_pairs: type[PairedSteps] = PairedSteps
        of_units: type[TorchSteps | ungated.NativeSteps] = TorchSteps
        source = paired.SOURCE if activation in FORMS else ungated.SOURCE
        if use_native(source, self.backend, W=W):
            of_pairs, of_units = paired.NativePairedSteps, ungated.NativeSteps
        elif self.backend in (None, "cuda") and scan.is_available(W, activation):
            of_pairs, of_units = CudaPairedSteps, CudaSteps
        elif self.backend == "cuda":
            raise ValueError(
                f"the CUDA kernel needs float32, at most {scan.LARGEST} units, a GPU, "
                "cuda-bindings, and states that are not clipped; "
                f"W is {W.dtype} {tuple(W.shape[1:])} on {W.device}"
            )
        if activation == "smoothed_modrelu" or activation == "shifted_modrelu":
            return of_pairs(parameters, activation)
        if activation == "clipped" and of_units is not ungated.NativeSteps:
            return ClippedSteps(parameters)
        return of_units(parameters, activation)

    def chunks(self, length: int, state: Tensor) -> Iterator[tuple[int, int]]:
        """Yield (first step, steps) of each chunk, given the states of one step."""
        size = self.chunk_size(length, state)
        return ((first, min(size, length - first)) for first in range(0, length, size))

    def chunk_size(self, length: int, state: Tensor) -> int:
        if self.chunk is not None:
            return min(self.chunk, length)
        budget = CHUNK_BYTES if state.device.type == "cpu" else 32 * CHUNK_BYTES
        return min(max(1, budget // max(1, state.numel() * state.element_size())), length)


class _Recurrence(Function):
    """(x, U, W, b, V, c, h0, how) to (logits, last h, states), lanes in front."""

    @staticmethod
    def forward(
        x: Tensor, U: Tensor, W: Tensor, b: Tensor, V: Tensor, c: Tensor, h0: Tensor, how: How
    ) -> tuple[Tensor, Tensor, Tensor]:
        (lanes, batch, n), length = h0.shape, x.shape[1]
        x = spread_input(x, lanes, symbols=U.shape[-1])
        steps = how.steps(Parameters(U, W, b, V, c))
        kept = length if how.keep else how.chunk_size(length, h0)
        H = empty_history((lanes, kept + 1, batch, steps.row), like=W)
        states = H[..., :n]
        states[:, 0] = h0
        read_all = how.readout == "all"
        logits = W.new_empty(lanes, length if read_all else 0, batch, V.shape[1])
        at = 0
        for first, size in how.chunks(length, h0):
            if not how.keep and first:
                states[:, 0] = states[:, at]
            start = first if how.keep else 0
            at, now = start + size, slice(first, first + size)
            steps.forward(H[:, start : at + 1], x[:, now], logits[:, now] if read_all else None)
        h = states[:, at].clone()
        if not read_all:
            logits = torch.baddbmm(c.unsqueeze(1), h, V.mT)
        return logits, h, (H if how.keep else W.new_empty(lanes, 0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        *tensors, ctx.how = inputs
        ctx.save_for_backward(*tensors, output[2])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, U, W, b, V, _, h0, H = ctx.saved_tensors
        d_logits, dh, _ = grads
        if d_logits is None:
            shape = x.shape[1:3] if ctx.how.readout == "all" else x.shape[2:3]
            d_logits = W.new_zeros(len(W), *shape, V.shape[1])
        if dh is None:
            dh = torch.zeros_like(h0)
        of_x = ctx.needs_input_grad[0]
        args = (x, U, W, b, V, H, d_logits, dh, ctx.how, of_x)
        dx, *rest = _Gradients.apply(*args)  # type: ignore[no-untyped-call]
        if of_x and len(x) < len(W):
            dx = dx.sum(0, keepdim=True)
        return (dx if of_x else None, *rest, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_Recurrence, info.batch_size, in_dims, args)


class _Gradients(Function):
    """The backward pass: gradients of x, U, W, b, V, c and h0, lanes in front."""

    @staticmethod
    def forward(
        x: Tensor,
        U: Tensor,
        W: Tensor,
        b: Tensor,
        V: Tensor,
        H: Tensor,
        d_logits: Tensor,
        dh: Tensor,
        how: How,
        of_x: bool,
    ) -> tuple[Tensor, ...]:
        x, (lanes, batch, n), length = spread_input(x, len(W)), dh.shape, x.shape[1]
        steps = how.steps(Parameters(U, W, b, V, V[:, :, 0]))
        read_all, d_logits = how.readout == "all", d_logits.contiguous()
        if not read_all:
            dh = torch.baddbmm(dh, d_logits, V)
        G = W.new_zeros(lanes, how.chunk_size(length, dh) + 1, batch, steps.row)
        dx = empty_history((lanes, length if of_x else 0, batch, U.shape[-1] or n), like=W)
        later = torch.zeros_like(dh)
        for first, size in reversed(list(how.chunks(length, dh))):
            g, now = G[:, : size + 1], slice(first, first + size)
            g[:, -1, :, :n] = later
            g[:, -2, :, :n] = dh if first + size == length else 0
            d = d_logits[:, now] if read_all else None
            steps.backward(g, H[:, first : first + size + 1], x[:, now], d)
            if of_x and U.shape[-1]:
                torch.bmm(g[:, :-1, :, :n].flatten(1, 2), U, out=dx[:, now].flatten(1, 2))
            elif of_x:
                dx[:, now] = g[:, :-1, :, :n]
            later = G[:, 0, :, :n]
        dU, dW, db, dV = steps.gradients()
        if not read_all:
            dV = d_logits.mT @ H[:, -1, :, :n]
        return dx, dU, dW, db, dV, d_logits.flatten(1, -2).sum(1), later @ W

    backward = first_derivatives_only(
        "the fast recurrence has first derivatives only; take second ones through "
        "eigensweep.models.recurrence.reference, as Model.states does"
    )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_Gradients, info.batch_size, in_dims, args)


def _check(x: Tensor, U: Tensor, W: Tensor, b: Tensor, V: Tensor, c: Tensor, h0: Tensor) -> None:
    """Raise ValueError unless what the steps are given fits."""
    check_input(x, "W", W)
    n, m, p = W.shape[-1], U.shape[-1], len(V)
    if m and x.is_floating_point():
        m = x.shape[2]
    check_each(
        "W",
        W,
        U=(U, (n, m)),
        W=(W, (n, n)),
        b=(b, (n,)),
        V=(V, (p, n)),
        c=(c, (p,)),
        h0=(h0, (x.shape[1], n)),
    )

"""The custom Function behind the fast gated recurrences: chunks of time, forward and back.

The states and the values of the gates are stored. Time is cut into chunks that stay in cache. In
each chunk the input is projected, the steps are run and a state is read out. The backward pass does
the same, with one product a chunk for the gradient of each matrix. A cell's `GatedSteps` define
one step. Inside, every tensor has an axis of lanes in front: M networks side by side. `torch.vmap`
becomes part of that axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from eigensweep.common.autograd import Function, first_derivatives_only
from eigensweep.models.recurrence.gated_steps import GatedSteps
from eigensweep.models.recurrence.history import empty_history
from eigensweep.models.recurrence.lanes import on_folded_lanes, spread_input

CHUNK_BYTES = 6 << 20
"""States and gates in a chunk of time on a CPU: in the last cache, and worth a product."""


@dataclass(frozen=True)
class GatedHow:
    """The arguments that are no tensors."""

    steps: type[GatedSteps]
    seen: int
    """Number of the state that is read out."""
    readout: Literal["all", "last"]
    chunk: int | None
    keep: bool
    """Whether states and gates of all steps are kept for a backward pass."""

    def chunk_size(self, length: int, state: Tensor) -> int:
        if self.chunk is not None:
            return min(self.chunk, length)
        budget = CHUNK_BYTES if state.device.type == "cpu" else 32 * CHUNK_BYTES
        size = state[:, 0].numel() * state.element_size() * (self.steps.states + self.steps.kept)
        return min(max(1, budget // max(1, size)), length)

    def chunks(self, length: int, state: Tensor) -> Iterator[tuple[int, int]]:
        """Yield (first step, steps) of each chunk, given the states of one step."""
        size = self.chunk_size(length, state)
        return ((first, min(size, length - first)) for first in range(0, length, size))

    def histories(self, block: Tensor, steps: int, batch: int, row: int) -> tuple[Tensor, Tensor]:
        """Return S and A of so many steps: parts of one block, (M, entries)."""
        shape = (self.steps.states, steps + 1, batch, row)
        size = self.steps.states * (steps + 1) * batch * row
        S, A = block[:, :size], block[:, size:]
        return torch.unflatten(S, 1, shape), torch.unflatten(
            A, 1, (steps, batch, self.steps.kept * row)
        )


def run_gated(
    how: GatedHow,
    x: Tensor,
    U: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    weights: tuple[Tensor, ...],
    start: tuple[Tensor, ...],
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return (logits, last states) of one network; shapes as in `gated`."""
    tensors = (x, U, b, V, c, torch.stack(start), *weights)
    logits, state, _ = _Gated.apply(*(t.unsqueeze(0) for t in tensors), how)  # type: ignore[no-untyped-call]
    return logits.squeeze(0), state.squeeze(0).unbind(0)


class _Gated(Function):
    """(x, U, b, V, c, start, *weights, how) to (logits, last states, what is kept), lanes first."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
        x, U, b, V, c, start, *weights, how = args
        x, length = spread_input(x, len(U), symbols=U.shape[-1]), x.shape[1]
        lanes, states, batch, n = start.shape
        steps = how.steps(U, b, tuple(weights), how.seen)
        slots = length if how.keep else how.chunk_size(length, start)
        size = batch * steps.row * (states * (slots + 1) + steps.kept * slots)
        block = empty_history((lanes, size), like=U)
        S, A = how.histories(block, slots, batch, steps.row)
        S[:, :, 0, :, n:] = 0
        S[:, :, 0, :, :n] = start
        read_all = how.readout == "all"
        logits = U.new_empty(lanes, length if read_all else 0, batch, V.shape[1])
        at = 0
        for first, size in how.chunks(length, start):
            if not how.keep and first:
                S[:, :, 0] = S[:, :, at]
            begin = first if how.keep else 0
            at, now = begin + size, slice(first, first + size)
            steps.forward(S[:, :, begin : at + 1], A[:, begin:at], x[:, now])
            if read_all:  # a product with few rows is faster than one with few columns
                seen = S[:, how.seen, begin + 1 : at + 1, :, :n].flatten(1, 2)
                y = torch.baddbmm(c.unsqueeze(2), V, seen.mT)
                logits[:, now].flatten(1, 2).copy_(y.mT)
        state = S[:, :, at, :, :n].clone()
        if not read_all:
            logits = torch.baddbmm(c.unsqueeze(1), state[:, how.seen], V.mT)
        return logits, state, (block if how.keep else U.new_empty(lanes, 0))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, U, b, V, _, _, *weights, ctx.how = inputs
        ctx.save_for_backward(x, U, b, V, *weights, output[2])
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, U, b, V, *weights, block = ctx.saved_tensors
        how, of_x = ctx.how, ctx.needs_input_grad[0]
        d_logits, carry, _ = grads
        batch = x.shape[2]
        if d_logits is None:
            shape = (*x.shape[1:3],) if how.readout == "all" else (batch,)
            d_logits = U.new_zeros(len(U), *shape, V.shape[1])
        if carry is None:
            carry = V.new_zeros(len(U), how.steps.states, batch, V.shape[2])
        args = (x, U, b, V, d_logits, carry, block, *weights, how, of_x)
        dx, dU, db, dV, dc, start, *rest = _GatedGradients.apply(*args)  # type: ignore[no-untyped-call]
        if of_x and len(x) < len(U):
            dx = dx.sum(0, keepdim=True)
        return (dx if of_x else None, dU, db, dV, dc, start, *rest, None)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_Gated, info.batch_size, in_dims, args)


class _GatedGradients(Function):
    """The backward pass: gradients of x, U, b, V, c, start and the weights, lanes first."""

    @staticmethod
    def forward(*args: Any) -> tuple[Tensor, ...]:
        x, U, b, V, d_logits, carry, block, *weights, how, of_x = args
        x, length = spread_input(x, len(U)), x.shape[1]
        lanes, states, batch, n = carry.shape
        steps = how.steps(U, b, tuple(weights), how.seen)
        row = steps.row
        S, A = how.histories(block, length, batch, row)
        read_all, d_logits = how.readout == "all", d_logits.contiguous()
        later = U.new_zeros(lanes, states, batch, row)
        later[..., :n] = carry
        if read_all:
            dV = torch.zeros_like(V)
        else:
            later[:, how.seen, :, :n] += d_logits @ V
            dV = d_logits.mT @ S[:, how.seen, -1, :, :n]
        size = how.chunk_size(length, carry)
        G = U.new_zeros(lanes, size, batch, steps.back * row)
        D = U.new_zeros(lanes, size if read_all else 0, batch, row)
        dx = U.new_empty(lanes, length if of_x else 0, batch, U.shape[-1])
        for first, size in reversed(list(how.chunks(length, carry))):
            now, g, d = slice(first, first + size), G[:, :size], None
            S_now, A_now = S[:, :, first : first + size + 1], A[:, now]
            if read_all:
                d, dy = D[:, :size], d_logits[:, now].flatten(1, 2)
                torch.bmm(dy, V, out=d[..., :n].flatten(1, 2))
                dV.baddbmm_(dy.mT, S_now[:, how.seen, 1:, :, :n].flatten(1, 2))
            steps.backward(g, S_now, A_now, d, later)
            steps.add_gradients(g, S_now, A_now, x[:, now])
            if of_x:
                dz = steps.columns(g, 0, steps.met).flatten(1, 2)
                torch.bmm(dz, steps.Ut.mT, out=dx[:, now].flatten(1, 2))
        dU, db, *rest = steps.gradients()
        return dx, dU, db, dV, d_logits.flatten(1, -2).sum(1), later[..., :n].contiguous(), *rest

    backward = first_derivatives_only(
        "the fast recurrence has first derivatives only; take second ones through the readable "
        "one, as Model.states does: eigensweep.models.recurrence.gated_reference, "
        "goru_reference and ode_reference"
    )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return on_folded_lanes(_GatedGradients, info.batch_size, in_dims, args)

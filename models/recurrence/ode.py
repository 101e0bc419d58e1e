"""The fast recurrences of coRNN and LEM, read out as V y_t + c, with their own backward pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigensweep.models.recurrence.checks import check_gated
from eigensweep.models.recurrence.gated_choice import Backend, choose_steps
from eigensweep.models.recurrence.gated_function import GatedHow, run_gated
from eigensweep.models.recurrence.ode_steps import CoRNNSteps, LEMSteps

Readout = Literal["all", "last"]


def cornn(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    dt: float | Tensor,
    gamma: float | Tensor,
    epsilon: float | Tensor,
    readout: Readout = "all",
    y0: Tensor | None = None,
    z0: Tensor | None = None,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return (logits, last (y, z)): V y_t + c at every step, (τ, B, p), or at the last one, (B, p).

    U is (n, m) and b (n,); R is (2n, n), the matrix of y above z's. x is int64 (τ, B), symbols
    in place of one-hot vectors, or float (τ, B, m); y0 and z0 are (B, n), by default zero. `chunk`
    and `backend` are those of `gated.lstm`.

    Values, parameters and first states take gradients, first derivatives only; dt, gamma and
    epsilon take none. `ode_reference` has the same function in plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    numbers = (dt, gamma, epsilon)
    return _run(CoRNNSteps, (x, U, R, b, V, c), numbers, (y0, z0), readout, chunk, backend)


def lem(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    dt: float | Tensor,
    readout: Readout = "all",
    y0: Tensor | None = None,
    z0: Tensor | None = None,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return (logits, last (y, z)): V y_t + c at every step, (τ, B, p), or at the last one, (B, p).

    U is (4n, m), R (4n, n) and b (4n,), in the order δ, δ̄, z, y. All else is as for `cornn`.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    return _run(LEMSteps, (x, U, R, b, V, c), (dt,), (y0, z0), readout, chunk, backend)


def _run(
    steps: type[CoRNNSteps] | type[LEMSteps],
    tensors: tuple[Tensor, ...],
    numbers: tuple[float | Tensor, ...],
    start: tuple[Tensor | None, Tensor | None],
    readout: Readout,
    chunk: int | None,
    backend: Backend | None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    x, U, R, b, V, c = tensors
    zero = R.new_zeros(x.shape[1:2].numel(), R.shape[-1])
    y0, z0 = (zero if state is None else state for state in start)
    rows = (steps.met, steps.products, steps.met)
    check_gated(x, U, R, b, V, c, rows=rows, y0=y0, z0=z0)
    constants = torch.stack([_as_tensor(number, R) for number in numbers])
    kind = choose_steps(steps, (R, constants), backend)
    how = GatedHow(kind, 0, readout, chunk, keep=torch.is_grad_enabled())
    logits, (y, z) = run_gated(how, x, U, b, V, c, (R, constants), (y0, z0))
    return logits, (y, z)


def _as_tensor(number: float | Tensor, like: Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.detach().to(like.device, like.dtype)
    return torch.full((), number, dtype=like.dtype, device=like.device)

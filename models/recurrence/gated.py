"""The fast LSTM and GRU recurrences, read out as V h_t + c, with their own backward pass.

PyTorch's own LSTM and GRU have no backend here: on a CPU they take 1.2 to 2.8 times (GRU: 1.7 to
5.8 times) as long at the sizes of the papers, and they know neither peepholes nor lanes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigensweep.models.recurrence.checks import check_each, check_gated
from eigensweep.models.recurrence.gated_choice import Backend, choose_steps
from eigensweep.models.recurrence.gated_function import GatedHow, run_gated
from eigensweep.models.recurrence.gated_reference import NO_PEEPHOLE, Peephole
from eigensweep.models.recurrence.gated_steps import ChoGRUSteps, GatedSteps, GRUSteps, LSTMSteps

Readout = Literal["all", "last"]

GRU_STEPS: dict[str, type[GatedSteps]] = {"pytorch": GRUSteps, "cho": ChoGRUSteps}


def lstm(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    peephole: Peephole = NO_PEEPHOLE,
    readout_from: Literal["state", "cell"] = "state",
    readout: Readout = "all",
    h0: Tensor | None = None,
    c0: Tensor | None = None,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return (logits, last (h, cell)): the state or the cell read out by V and c.

    Logits are (τ, B, p), or (B, p) where the last step only is read out. U is (4n, m), R (4n, n)
    and b (4n,), in the order i, f, o, g; x is int64 (τ, B), symbols in place of one-hot vectors, or
    float (τ, B, m); h0 and c0 are (B, n), by default zero. `chunk` time steps are worked on at a
    time (default: about 6 MB of states and gates) and `backend` runs them (default: the compiled
    one of the device, where it can be used). Neither changes more than rounding.

    Values, parameters and first states take gradients, first derivatives only: for a second one
    `eigensweep.models.recurrence.gated_reference` has the same function in plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    n, (h0, c0) = R.shape[-1], _start((h0, c0), x, R)
    seen = {"peephole_input_forget": peephole.input_forget, "peephole_output": peephole.output}
    check_gated(x, U, R, b, V, c, rows=(4, 4, 4), h0=h0, c0=c0)
    full = peephole.output is not None and peephole.output.dim() == 2
    given = {name: weights for name, weights in seen.items() if weights is not None}
    check_each(
        "R",
        R,
        peephole_input_forget=(peephole.input_forget, (2 * n,)),
        peephole_output=(peephole.output, (n, n) if full else (n,)),
    )
    if len(given) != (0 if peephole.output is None else 2 - full):
        raise ValueError(
            "a peephole has both vectors, one full matrix of the output gate, or nothing; "
            f"given are {', '.join(given)}"
        )
    weights, seen_state = (R, *given.values()), int(readout_from == "cell")
    how = _how(LSTMSteps, weights, readout, chunk, backend, seen_state)
    logits, (h, cell) = run_gated(how, x, U, b, V, c, weights, (h0, c0))
    return logits, (h, cell)


def gru(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    variant: Literal["pytorch", "cho"] = "pytorch",
    readout: Readout = "all",
    h0: Tensor | None = None,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logits, last h): V h_t + c at every step, (τ, B, p), or at the last one, (B, p).

    U is (3n, m), R (3n, n) and b (3n,), in the order r, z, candidate. In the variant `pytorch` the
    reset gate is applied to R h, in `cho` to h. All else is as for `lstm`.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    (h0,) = _start((h0,), x, R)
    check_gated(x, U, R, b, V, c, rows=(3, 3, 3), h0=h0)
    how = _how(GRU_STEPS[variant], (R,), readout, chunk, backend)
    logits, (h,) = run_gated(how, x, U, b, V, c, (R,), (h0,))
    return logits, h


def _how(
    steps: type[GatedSteps],
    weights: tuple[Tensor, ...],
    readout: Readout,
    chunk: int | None,
    backend: Backend | None,
    seen: int = 0,
) -> GatedHow:
    kind = choose_steps(steps, weights, backend)
    return GatedHow(kind, seen, readout, chunk, keep=torch.is_grad_enabled())


def _start(given: tuple[Tensor | None, ...], x: Tensor, R: Tensor) -> tuple[Tensor, ...]:
    zero = R.new_zeros(x.shape[1:2].numel(), R.shape[-1])
    return tuple(zero if state is None else state for state in given)

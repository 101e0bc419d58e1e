"""The fast GORU recurrence, read out as V h_t + c, with its own backward pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigensweep.models.recurrence.checks import check_each, check_gated
from eigensweep.models.recurrence.gated_choice import Backend, choose_steps
from eigensweep.models.recurrence.gated_function import GatedHow, run_gated
from eigensweep.models.recurrence.gated_steps import GORUSteps


def goru(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    threshold: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    readout: Literal["all", "last"] = "all",
    h0: Tensor,
    chunk: int | None = None,
    backend: Backend | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logits, last h): V h_t + c at every step, (τ, B, p), or at the last one, (B, p).

    U is (3n, m) and R (3n, n), in the order r, z, candidate, R's last rows the rotation W; b is
    (2n,), of the gates, and the threshold of modReLU (n,). x is int64 (τ, B), symbols in place of
    one-hot vectors, or float (τ, B, m); h0 is (B, n). `chunk` and `backend` are those of
    `gated`. First derivatives only: for a second one `goru_reference` has the
    same function in plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    check_gated(x, U, R, b, V, c, rows=(3, 3, 2), h0=h0)
    check_each("R", R, threshold=(threshold, (R.shape[-1],)))
    steps = choose_steps(GORUSteps, (R, threshold), backend)
    how = GatedHow(steps, 0, readout, chunk, keep=torch.is_grad_enabled())
    b = torch.cat((b, torch.zeros_like(threshold)))
    logits, (h,) = run_gated(how, x, U, b, V, c, (R, threshold), (h0,))
    return logits, h

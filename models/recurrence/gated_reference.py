"""The readable LSTM and GRU recurrences: any dtype, any device, any derivative."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from eigensweep.models.recurrence.reference import project


class Peephole(NamedTuple):
    """What gates of an LSTM see of the cell."""

    input_forget: Tensor | None = None
    """(2n,): weights of c_{t-1} in the gates i and f, unit by unit."""
    output: Tensor | None = None
    """(n,): weights of c_t in the gate o, unit by unit; or (n, n), a full matrix."""


NO_PEEPHOLE = Peephole()


def lstm_states(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    *,
    peephole: Peephole = NO_PEEPHOLE,
    h0: Tensor,
    c0: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return h and the cell at every step, each (τ, B, n).

    U is (4n, m), R (4n, n) and b (4n,), in the order i, f, o, g. x is int64 (τ, B) or float
    (τ, B, m); h0 and c0 are (B, n).
    """
    n = R.shape[-1]
    Rt, h, c, H, C = R.mT, h0, c0, [], []
    for Ux in project(x, U, b).unbind(0):
        i, f, o, g = _gates(torch.addmm(Ux, h, Rt), n, c, peephole)
        c = torch.addcmul(f * c, i, torch.tanh(g))
        if peephole.output is not None:
            o = torch.sigmoid(o + _peephole_part(c, peephole.output))
        h = o * torch.tanh(c)
        H.append(h)
        C.append(c)
    return torch.stack(H), torch.stack(C)


def gru_states(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    *,
    variant: Literal["pytorch", "cho"] = "pytorch",
    h0: Tensor,
) -> Tensor:
    """Return h at every step, (τ, B, n).

    U is (3n, m), R (3n, n) and b (3n,), in the order r, z, candidate. The reset gate is applied to
    R h in the variant `pytorch`, to h in `cho`. x is int64 (τ, B) or float (τ, B, m); h0 is (B, n).
    """
    n = R.shape[-1]
    R_rz, R_n = (M.mT for M in torch.split(R, [2 * n, n]))
    h, H = h0, []
    for Ux in project(x, U, b).unbind(0):
        rz, candidate = torch.split(Ux, [2 * n, n], -1)
        r, z = torch.sigmoid(torch.addmm(rz, h, R_rz)).chunk(2, -1)
        Rh = r * (h @ R_n) if variant == "pytorch" else (r * h) @ R_n
        h = z * h + (1 - z) * torch.tanh(candidate + Rh)
        H.append(h)
    return torch.stack(H)


def _gates(z: Tensor, n: int, c: Tensor, peephole: Peephole) -> tuple[Tensor, ...]:
    """Return i, f, o and the argument of g; o is still an argument where it sees the new cell."""
    if peephole.output is None:
        ifo, g = torch.split(z, [3 * n, n], -1)
        return (*torch.sigmoid(ifo).chunk(3, -1), g)
    both, o, g = torch.split(z, [2 * n, n, n], -1)
    if peephole.input_forget is not None:
        both = both + peephole.input_forget * torch.cat((c, c), -1)
    return (*torch.sigmoid(both).chunk(2, -1), o, g)


def _peephole_part(c: Tensor, weights: Tensor) -> Tensor:
    return c * weights if weights.dim() == 1 else c @ weights.mT

"""The readable recurrences of coRNN and LEM: any dtype, any device, any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from eigensweep.models.recurrence.reference import project


def cornn_states(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    *,
    dt: float | Tensor,
    gamma: float | Tensor,
    epsilon: float | Tensor,
    y0: Tensor,
    z0: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return y and z at every step, each (τ, B, n).

    U is (n, m) and b (n,); R is (2n, n), the matrix of y above z's. x is int64 (τ, B) or float
    (τ, B, m); y0 and z0 are (B, n).
    """
    (R_y, R_z), y, z, states = R.mT.chunk(2, -1), y0, z0, []
    for Ux in project(x, U, b).unbind(0):
        force = torch.tanh(Ux + y @ R_y + z @ R_z)
        z = z + dt * (force - gamma * y - epsilon * z)
        y = y + dt * z
        states.append((y, z))
    Y, Z = zip(*states, strict=True)
    return torch.stack(Y), torch.stack(Z)


def lem_states(
    x: Tensor, U: Tensor, R: Tensor, b: Tensor, *, dt: float | Tensor, y0: Tensor, z0: Tensor
) -> tuple[Tensor, Tensor]:
    """Return y and z at every step, each (τ, B, n).

    U is (4n, m), R (4n, n) and b (4n,), in the order δ, δ̄, z, y. x is int64 (τ, B) or float
    (τ, B, m); y0 and z0 are (B, n).
    """
    n = R.shape[-1]
    R_y, R_z = (part.mT for part in torch.split(R, [3 * n, n]))
    y, z, states = y0, z0, []
    for Ux in project(x, U, b).unbind(0):
        of_y, of_z = torch.split(Ux, [3 * n, n], -1)
        slow, quick, new = (of_y + y @ R_y).chunk(3, -1)
        slow, quick = dt * torch.sigmoid(slow), dt * torch.sigmoid(quick)
        z = (1 - slow) * z + slow * torch.tanh(new)
        y = (1 - quick) * y + quick * torch.tanh(of_z + z @ R_z)
        states.append((y, z))
    Y, Z = zip(*states, strict=True)
    return torch.stack(Y), torch.stack(Z)

"""The readable GORU recurrence: any dtype, any device, any derivative."""

from __future__ import annotations

import torch
from torch import Tensor

from eigensweep.models.recurrence.reference import modrelu, project


def goru_states(
    x: Tensor, U: Tensor, R: Tensor, b: Tensor, threshold: Tensor, *, h0: Tensor
) -> Tensor:
    """Return h at every step, (τ, B, n).

    U is (3n, m) and R (3n, n), in the order r, z, candidate, R's last rows the rotation W; b is
    (2n,), of the gates, and the threshold of modReLU (n,). x is int64 (τ, B) or float (τ, B, m); h0
    is (B, n).
    """
    n = R.shape[-1]
    R_rz, W = (M.mT for M in torch.split(R, [2 * n, n]))
    h, H = h0, []
    for Ux in project(x, U, None).unbind(0):
        rz, candidate = torch.split(Ux, [2 * n, n], -1)
        r, z = torch.sigmoid(torch.addmm(rz + b, h, R_rz)).chunk(2, -1)
        h = z * h + (1 - z) * modrelu(candidate + r * (h @ W), threshold)
        H.append(h)
    return torch.stack(H)

"""Fisher memory curves: how much a noisy linear network still knows of an input t steps ago.

Source: Ganguli, Huh & Sompolinsky, PNAS 2008; Kerg et al., NeurIPS 2019, figure 1c.

Departure: the authors invert C, whose size reaches 10²³; here its root is built by doubling and C
is never formed, which keeps every printed digit.
"""

from __future__ import annotations

import torch
from torch import Tensor

DOUBLINGS = 14
"""C is summed over 2^14 steps: what is left then has to have vanished."""


def memory_curve(Theta: Tensor, u: Tensor, steps: int = 150) -> Tensor:
    """Return J(t) = (Θᵗ u)ᵀ C⁻¹ (Θᵗ u) for t < `steps`, with C = Σ_k Θᵏ (Θᵀ)ᵏ.

    Θ is (N, N), u is (N,), both float64.

    Raises:
        ValueError: if the sum does not end: Θ has an eigenvalue on or outside the unit circle.
    """
    L, x, J = noise_root(Theta), u, []
    for _ in range(steps):
        J.append(torch.linalg.solve_triangular(L, x[:, None], upper=False).square().sum())
        x = Theta @ x
    return torch.stack(J)


def noise_root(Theta: Tensor) -> Tensor:
    """Return the lower triangular L with L Lᵀ = C = Σ_k Θᵏ (Θᵀ)ᵏ.

    From C_k = L Lᵀ, summed over k steps, C_2k = C_k + Θᵏ C_k (Θᵀ)ᵏ is the square of [L, Θᵏ L].

    >>> round(noise_root(torch.tensor([[0.6]], dtype=torch.float64)).abs().item(), 12)
    1.25
    """
    L = torch.eye(len(Theta), dtype=Theta.dtype)
    P = Theta
    for _ in range(DOUBLINGS):
        L = torch.linalg.qr(torch.cat((L, P @ L), dim=1).mT, mode="r").R.mT
        P = P @ P
    if not bool(torch.isfinite(L).all()) or bool(P.abs().max() > torch.finfo(P.dtype).eps):
        raise ValueError(
            "the noise of this network adds up without end: an eigenvalue of Θ lies on or outside "
            "the unit circle; take a diagonal nearer to zero"
        )
    return L

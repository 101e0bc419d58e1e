"""How the norm of a state changes under h_t = Θ h_{t-1} with a triangular Θ.

Source: Kerg et al., NeurIPS 2019, figure 1b; the settings are those of the authors' notebook.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Transient:
    """Statistics over an ensemble of states at t = 0, 1, ..., each (steps + 1,)."""

    norm: Tensor
    """Mean of ‖h_t‖₂ over the ensemble."""
    norm_sd: Tensor
    """Its standard deviation over the ensemble (divided by their number)."""
    unit_sd: Tensor
    """Standard deviation of a unit over the ensemble, the mean over the units."""
    unit_sd_sd: Tensor
    """How much that differs between units: its standard deviation over them."""


def feed_forward(alpha: float, beta: float, diagonal: float = 0.0, size: int = 100) -> Tensor:
    """Return Θ, (N, N): `diagonal` on it, `alpha` just below, `beta` on all that is lower.

    >>> feed_forward(2.0, 0.5, 0.1, 3).tolist()
    [[0.1, 0.0, 0.0], [2.0, 0.1, 0.0], [0.5, 2.0, 0.1]]
    """
    every = torch.ones(size, size, dtype=torch.float64)
    neighbours = torch.tril(every, -1) - torch.tril(every, -2)
    return diagonal * torch.eye(size).double() + alpha * neighbours + beta * torch.tril(every, -2)


def ensemble(size: int = 100, vectors: int = 1000, seed: int = 4) -> Tensor:
    """Return random unit vectors as columns, (N, R), drawn as the authors' notebook draws them.

    NumPy's old generator is theirs, and gives the reference values.
    """
    draws = np.random.RandomState(seed).randn(size * vectors)
    H = torch.from_numpy(draws.reshape(size, vectors))
    return H / H.norm(dim=0)


def transient(Theta: Tensor, H0: Tensor, steps: int = 125) -> Transient:
    """Return what becomes of the ensemble H0, (N, R), in so many steps without input."""
    H, norms, units = H0, [], []
    for t in range(steps + 1):
        H = Theta @ H if t else H
        norms.append(H.norm(dim=0))
        units.append(H.std(dim=1, correction=0))
    norm, unit = torch.stack(norms), torch.stack(units)
    return Transient(
        norm.mean(1), norm.std(1, correction=0), unit.mean(1), unit.std(1, correction=0)
    )

"""What each unit does over time while one sequence passes.

Source: Henaff, Szlam & LeCun, ICML 2016, figure 5: the units of a pooled LT-ORNN on adding.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from eigensweep.models.base import Model


def hidden_trace(model: Model, x: Tensor) -> Tensor:
    """Return h at every step, (τ, n), for one sequence x, (τ,) symbols or (τ, m) values.

    Of a complex unit the real part is shown.
    """
    with torch.no_grad():
        h = model.states(x.unsqueeze(1)).squeeze(1)
    return h.real if h.is_complex() else h


def movement(h: Tensor) -> Tensor:
    """Return ‖h_t - h_{t-1}‖₂ for every t, (τ,), with h_{-1} = 0: zero while a state stands still.

    >>> movement(torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 5.0]])).tolist()
    [5.0, 0.0, 1.0]
    """
    return torch.diff(h, dim=0, prepend=torch.zeros_like(h[:1])).norm(dim=1)


def mean_between(numbers: Tensor, marks: Sequence[int]) -> list[float]:
    """Return the mean of `numbers`, (τ,), before the first mark, between marks and after the last.

    A marked step opens the piece that follows it; a piece of no steps has mean zero.

    >>> mean_between(torch.tensor([1.0, 1.0, 5.0, 7.0]), [2])
    [1.0, 6.0]
    """
    edges = [0, *marks, len(numbers)]
    pieces = [numbers[a:b] for a, b in pairwise(edges)]
    return [piece.mean().item() if len(piece) else 0.0 for piece in pieces]

"""Plain loops for networks of layers.

Products are computed for all steps at once, layer by layer, so that the loop over time has the
recurrence alone: what a program without a scan would do at best.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from bench.authors import Loop


class LayeredLoop(Loop):
    """h_t = a_t ⊙ h_{t-1} + b_t, one step after the other, on complex numbers where units pair."""

    def forward(self, x: Tensor) -> Tensor:
        model = self.model
        u = linear(x, model.input_matrix(), model.b)
        for layer in model.layers:
            u, _, _ = layer(u, layer.initial_state(u), step_by_step)
        seen = u if model.shapes.readout == "all" else u[-1]
        return linear(model.finish(seen), model.V, model.c)


def step_by_step(a: Tensor, b: Tensor, h0: Tensor, *, paired: bool = False) -> Tensor:
    """Return all states, (τ, B, n), by a loop over time."""
    if paired:
        a, b, h0 = (torch.view_as_complex(torch.unflatten(p, -1, (-1, 2))) for p in (a, b, h0))
    h, states = h0, []
    for a_t, b_t in zip(a.expand(b.shape).unbind(0), b.unbind(0), strict=True):
        h = a_t * h + b_t  # not a[t]: its gradient would be as long as the sequence, at each step
        states.append(h)
    stacked = torch.stack(states)
    return torch.view_as_real(stacked).flatten(-2) if paired else stacked

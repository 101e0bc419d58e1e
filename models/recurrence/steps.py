"""The two calls behind the fast recurrence, and the form in PyTorch: any dtype, any device.

Everything here has a lane axis in front, M networks side by side: H is (M, τ+1, B, n), W (M, n, n)
and b (M, n). H and G may be slices of a longer history.
"""

from __future__ import annotations

from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

Activation = Literal["modrelu", "tanh", "relu", "identity", "leaky_relu"]
"""f. modReLU's b is its threshold; for the others b is added to the argument. A modReLU with an eps,
sign(z) · max(|z| + eps + b, 0), is the one without at b + eps."""

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)

LEAK = 0.1
"""Slope of leaky ReLU below zero, as in oRNN."""


class Steps(Protocol):
    """The steps of one chunk of time, forward and back, for a given W, b and f."""

    def forward(self, H: Tensor) -> None:
        """Turn U x_t in H[:, 1:] into h_t = f(U x_t + W h_{t-1} + b), starting from H[:, 0]."""

    def backward(self, G: Tensor, H: Tensor) -> Tensor:
        """Turn G[:, :-1] from dL/dh_t, later steps left out, into dL/dz_t; return dL/db, (M, n).

        z_t is the argument of f. G[:, -1] holds dL/dz of the step after the chunk; H is what
        `forward` made.
        """


class TorchSteps:
    """The steps in PyTorch, in place."""

    def __init__(self, W: Tensor, b: Tensor, activation: Activation) -> None:
        self.W, self.b, self.activation = W, b.unsqueeze(1), activation

    def forward(self, H: Tensor) -> None:
        Wt = self.W.mT
        h, *rest = H.unbind(1)
        for z in rest:
            z.baddbmm_(h, Wt)
            apply_(self.activation, z, self.b)
            h = z

    def backward(self, G: Tensor, H: Tensor) -> Tensor:
        *earlier, d = G.unbind(1)
        for g, h in zip(reversed(earlier), reversed(H.unbind(1)), strict=False):
            g.baddbmm_(d, self.W)
            apply_slope_(self.activation, g, h)
            d = g
        dz = G[:, :-1]
        if self.activation == "modrelu":
            dz = dz * H[:, 1:].sign()
        return dz.sum((1, 2))


def apply_(activation: Activation, z: Tensor, b: Tensor) -> None:
    """Turn z into f(z; b), in place."""
    if activation == "modrelu":
        sign = z.sign()
        z.abs_().add_(b).relu_().mul_(sign)
        return
    z.add_(b)
    if activation == "tanh":
        z.tanh_()
    elif activation == "relu":
        z.relu_()
    elif activation == "leaky_relu":
        torch.nn.functional.leaky_relu_(z, LEAK)


def apply_slope_(activation: Activation, g: Tensor, h: Tensor) -> None:
    """Turn g = dL/dh into dL/dz, in place, from h = f(z; b) alone."""
    if activation == "modrelu":
        g.masked_fill_(h == 0, 0)
    elif activation == "tanh":
        g.sub_(g * h * h)
    elif activation == "relu":
        g.masked_fill_(h <= 0, 0)
    elif activation == "leaky_relu":
        g.mul_(torch.where(h > 0, 1.0, LEAK))

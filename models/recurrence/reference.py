"""The readable recurrence h_t = f(U x_t + W h_{t-1} + b): any dtype, any device, any derivative."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, leaky_relu, linear

from eigensweep.models.recurrence.steps import LEAK, Activation, clip_scale


def recurrent_states(
    x: Tensor, U: Tensor | None, W: Tensor, b: Tensor, *, activation: Activation, h0: Tensor
) -> Tensor:
    """Return h at every step, (τ, B, n), starting from h0, (B, n).

    x is int64 (τ, B), symbols in place of one-hot vectors, or float (τ, B, m), or without U float
    (τ, B, n), which enters the state as it is.

    >>> x, U, W = torch.tensor([[0], [1], [1]]), torch.eye(2), torch.zeros(2, 2)
    >>> b, h0 = torch.zeros(2), torch.zeros(1, 2)
    >>> recurrent_states(x, U, W, b, activation="relu", h0=h0).squeeze(1).tolist()
    [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """
    Z = project(x, U, None if activation in ("modrelu", "clipped") else b)
    Wt, h, H = W.mT, h0, []
    for Ux in Z.unbind(0):
        h = activate(torch.addmm(Ux, h, Wt), b, activation)
        H.append(h)
    return torch.stack(H)


def activate(z: Tensor, b: Tensor, activation: Activation) -> Tensor:
    """Return f(z). Only modReLU and `clipped` look at b: for the others it is in z already."""
    match activation:
        case "modrelu":
            return modrelu(z, b)
        case "relu":
            return torch.relu(z)
        case "tanh":
            return torch.tanh(z)
        case "leaky_relu":
            return leaky_relu(z, LEAK)
        case "identity":
            return z
        case "clipped":
            return z * clip_scale(z, b[..., :1])


def project(x: Tensor, U: Tensor | None, b: Tensor | None) -> Tensor:
    """Return U x_t + b for all steps at once, (τ, B, n): a lookup where x holds symbols."""
    if U is None:
        return x if b is None else x + b
    if x.is_floating_point():
        return linear(x, U, b)
    columns = U.mT if b is None else U.mT + b
    return embedding(x, columns)


def modrelu(z: Tensor, b: Tensor) -> Tensor:
    """Return sign(z) · max(|z| + b, 0) for real z: 0 at z = 0, and slope 0 or 1 in z.

    >>> modrelu(torch.tensor([-2.0, 0.0, 0.3]), torch.tensor(-0.5)).tolist()
    [-1.5, 0.0, 0.0]
    """
    return z.detach().sign() * torch.relu(z.abs() + b)

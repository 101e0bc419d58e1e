"""The steps behind the fast recurrence, and their form in PyTorch: any dtype, any device.

Everything here has an axis of lanes in front, M networks side by side: x (M, τ, B) or (M, τ, B, m),
H (M, τ+1, B, n), W (M, n, n), b (M, n). Steps may ask for padded rows in H and G.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu_

from eigensweep.models.recurrence.symbols import add_rows, look_up

Activation = Literal["modrelu", "tanh", "relu", "identity", "leaky_relu", "clipped"]
"""f. modReLU's b is its threshold; for the others b is added to the argument. A modReLU with an
eps, sign(z) · max(|z| + eps + b, 0), is the one without at b + eps. `clipped` is z, scaled down to
the length b where it is longer: all entries of b are that length, which takes no gradient."""

ACTIVATIONS: tuple[Activation, ...] = tuple(a for a in get_args(Activation) if a != "clipped")
"""Those that act on each unit alone."""

LEAK = 0.1
"""Slope of leaky ReLU below zero, as in oRNN."""


class Parameters(NamedTuple):
    """The tensors of h_t = f(U x_t + W h_{t-1}; b), read out as V h_t + c; or their gradients.

    U has no columns where x enters as it is.
    """

    U: Tensor
    W: Tensor
    b: Tensor
    V: Tensor
    c: Tensor


class Steps(Protocol):
    """The steps of one chunk of time, forward and back."""

    row: int
    """Length of a row of H and G: n, or more where rows are padded."""

    def forward(self, H: Tensor, x: Tensor, logits: Tensor | None) -> None:
        """Write h_t into H[:, 1:], starting from H[:, 0], and V h_t + c into `logits` if given."""

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        """Write dL/dz_t into G[:, :-1], with z_t = U x_t + W h_{t-1}, and add up the gradients.

        H is what `forward` wrote. On entry G[:, -1] holds dL/dz of the step after the chunk, and
        G[:, -2] the part of the last state's gradient that comes neither from that step nor from
        the logits.
        """

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the sums for U, W, b and V."""


class TorchSteps:
    """The steps in PyTorch, in place, one small product at a time."""

    def __init__(self, parameters: Parameters, activation: Activation) -> None:
        self.parameters, self.activation = parameters, activation
        self.row = parameters.W.shape[-1]
        self.sums: tuple[Tensor, ...] = ()

    def forward(self, H: Tensor, x: Tensor, logits: Tensor | None) -> None:
        U, _, _, V, c = self.parameters
        made = H[:, 1:].flatten(1, 2)
        _project(x, U, made)
        self.run_forward(H)
        if logits is not None:  # a product with few rows is twice as fast as one with few columns
            logits.flatten(1, 2).copy_(torch.baddbmm(c.unsqueeze(2), V, made.mT).mT)

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        U, W, b, V, _ = self.parameters
        self.sums = self.sums or tuple(W.new_zeros(t.shape) for t in (U.mT, W, b, V))
        dUt, dW, db, dV = self.sums
        dz, made = G[:, :-1].flatten(1, 2), H[:, 1:].flatten(1, 2)
        at_last = G[:, -2].clone()
        if d_logits is None:
            dz.zero_()
        else:
            torch.bmm(d_logits.flatten(1, 2), V, out=dz)
            dV.baddbmm_(d_logits.flatten(1, 2).mT, made)
        G[:, -2].add_(at_last)
        db += self.run_backward(G, H)
        dW.baddbmm_(dz.mT, H[:, :-1].flatten(1, 2))
        if not U.shape[-1]:
            return
        if x.is_floating_point():
            dUt.baddbmm_(x.flatten(1, 2).mT, dz)
        else:
            add_rows(dUt, x.flatten(1), dz)

    def run_forward(self, H: Tensor) -> None:
        """Turn U x_t in H[:, 1:] into h_t, step after step, starting from H[:, 0]."""
        Wt, b, (h, *rest) = self.parameters.W.mT, self.parameters.b.unsqueeze(1), H.unbind(1)
        for z in rest:
            z.baddbmm_(h, Wt)
            apply_(self.activation, z, b)
            h = z

    def run_backward(self, G: Tensor, H: Tensor) -> Tensor:
        """Turn what reaches each state from its logits, in G[:, :-1], into dL/dz, from the last.

        Returns dL/db of the chunk, (M, n).
        """
        *earlier, d = G.unbind(1)
        for g, h in zip(reversed(earlier), reversed(H.unbind(1)), strict=False):
            g.baddbmm_(d, self.parameters.W)
            apply_slope_(self.activation, g, h)
            d = g
        dz = G[:, :-1]
        return (dz * H[:, 1:].sign() if self.activation == "modrelu" else dz).sum((1, 2))

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dUt, dW, db, dV = self.sums
        return dUt.mT, dW, db, dV


class ClippedSteps(TorchSteps):
    """The steps of `clipped`, whose slope does not follow from h: z is made again on the way back.

    Where z is longer than ℓ, h = ℓ z / |z| and dL/dz = ℓ / |z| (g - h (h · g) / ℓ²).
    """

    def __init__(self, parameters: Parameters) -> None:
        super().__init__(parameters, "clipped")
        self.scales = parameters.W.new_empty(0)

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        U, W, b, _, _ = self.parameters
        made = torch.empty_like(H[:, 1:]).flatten(1, 2)
        _project(x, U, made)
        made.baddbmm_(H[:, :-1].flatten(1, 2), W.mT)
        self.scales = clip_scale(made, b[:, :1].unsqueeze(1)).view(*H[:, 1:].shape[:-1], 1)
        super().backward(G, H, x, d_logits)

    def run_backward(self, G: Tensor, H: Tensor) -> Tensor:
        limit, (*earlier, d) = self.parameters.b[:, :1].unsqueeze(1), G.unbind(1)
        made, scales = H[:, 1:].unbind(1), self.scales.unbind(1)
        for g, h, scale in zip(*map(reversed, (earlier, made, scales)), strict=True):
            g.baddbmm_(d, self.parameters.W)
            radial = (g * h).sum(-1, keepdim=True) / limit.square()
            g.copy_(torch.where(scale < 1, scale * (g - h * radial), g))
            d = g
        return torch.zeros_like(self.parameters.b)  # a length takes no gradient


def clip_scale(z: Tensor, limit: Tensor) -> Tensor:
    """Return what scales each z, (..., n), down to the length `limit`, (..., 1): at most 1.

    >>> clip_scale(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([1.0])).tolist()
    [[0.20000000298023224], [1.0]]
    """
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return limit / torch.where(length > limit, length, limit)  # a tie's gradient is not halved


def _project(x: Tensor, U: Tensor, out: Tensor) -> None:
    """Write U x_t of all steps into `out`, (M, τ B, n)."""
    if not U.shape[-1]:
        out.copy_(x.flatten(1, 2))
    elif x.is_floating_point():
        torch.bmm(x.flatten(1, 2), U.mT, out=out)
    else:
        look_up(U.mT, x.flatten(1), out=out)


def apply_(activation: Activation, z: Tensor, b: Tensor) -> None:
    """Turn z into f(z; b), in place."""
    if activation == "modrelu":
        sign = z.sign()
        z.abs_().add_(b).relu_().mul_(sign)
        return
    if activation == "clipped":
        z.mul_(clip_scale(z, b[..., :1]))
        return
    z.add_(b)
    if activation == "tanh":
        z.tanh_()
    elif activation == "relu":
        z.relu_()
    elif activation == "leaky_relu":
        leaky_relu_(z, LEAK)


def apply_slope_(activation: Activation, g: Tensor, h: Tensor) -> None:
    """Turn g = dL/dh into dL/dz, in place, from h = f(z; b) alone."""
    if activation == "modrelu":
        g.masked_fill_(h == 0, 0)
    elif activation == "tanh":
        g.sub_(g * h * h)
    elif activation == "relu":
        g.masked_fill_(h <= 0, 0)
    elif activation == "leaky_relu":
        torch.where(h > 0, g, g * LEAK, out=g)

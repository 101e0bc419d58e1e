"""The products of `rotations`, computed in place, with a backward pass of their own.

The backward pass undoes one layer after the other with the layer's own angles. So only the product
is stored, and a layer costs a few passes over it in place of many. It has first derivatives only;
`rotations` has derivatives of any order.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigensweep.common.autograd import Function, first_derivatives_only, fold_lanes
from eigensweep.models.matrices.rotations import Angles

Style = Literal["tunable", "fft"]


def tunable_product(even: Angles, odd: Angles) -> Tensor:
    """Return what `rotations.tunable_product` does."""

    def layers(first: Tensor, second: Tensor) -> Tensor:
        return torch.stack((first, pad(second, (0, 1))), -2).flatten(-3, -2)

    theta = layers(even.theta, odd.theta)
    if even.phi is None or odd.phi is None:
        return _product(theta, None, "tunable")
    return _product(theta, layers(even.phi, odd.phi), "tunable")


def fft_product(angles: Angles) -> Tensor:
    """Return what `rotations.fft_product` does."""
    return _product(angles.theta, angles.phi, "fft")


def _product(theta: Tensor, phi: Tensor | None, style: Style) -> Tensor:
    lanes = theta.unsqueeze(0), None if phi is None else phi.unsqueeze(0)
    made: Tensor = _Product.apply(*lanes, style)  # type: ignore[no-untyped-call]
    return made.squeeze(0)


class _Layers:
    """The layers of M products at once; X is (..., M, n, n)."""

    def __init__(self, theta: Tensor, phi: Tensor | None, style: Style) -> None:
        self.style = style
        self.count, pairs = theta.shape[1:]
        self.n = 2 * pairs
        self.cos, self.sin = theta.cos(), theta.sin()
        self.phase = None if phi is None else torch.complex(phi.cos(), phi.sin())

    def pairs(self, X: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return views of the first and of the second units of layer k's pairs."""
        if self.style == "fft":
            a, b = torch.unflatten(X, -2, (1 << k, 2, -1)).unbind(-3)
            return a, b
        end = self.n - k % 2
        return X[..., k % 2 : end : 2, :], X[..., k % 2 + 1 : end : 2, :]

    def at(self, values: Tensor, k: int) -> Tensor:
        """Return layer k's entries of `values`, (M, layers, n / 2), as its pairs are laid out."""
        values = values[:, k]
        if self.style == "fft":
            return torch.unflatten(values, -1, (-1, 1 << k)).mT.unsqueeze(-1)
        return values[:, : self.n // 2 - k % 2].unsqueeze(-1)

    def turn(self, X: Tensor, k: int, direction: int) -> None:
        """Rotate the pairs of layer k, in place: by θ, or back by it."""
        a, b = self.pairs(_as_real(X), k)
        cos, sin = self.at(self.cos, k), direction * self.at(self.sin, k)
        turned = a * sin
        a.mul_(cos).addcmul_(b, sin, value=-1)
        b.mul_(cos).add_(turned)

    def shift(self, X: Tensor, k: int, direction: int) -> None:
        """Multiply the second units of layer k by e^{iφ}, in place, or divide them by it."""
        if self.phase is not None:
            phase = self.at(self.phase, k)
            self.pairs(X, k)[1].mul_(phase if direction > 0 else phase.conj())


class _Product(Function):
    """(theta, phi or None, style) to the products, lanes in front."""

    @staticmethod
    def forward(theta: Tensor, phi: Tensor | None, style: Style) -> Tensor:
        layers = _Layers(theta, phi, style)
        like = layers.cos if layers.phase is None else layers.phase
        eye = torch.eye(layers.n, dtype=like.dtype, device=like.device)
        X = eye.repeat(len(theta), 1, 1)
        for k in range(layers.count):
            layers.shift(X, k, 1)
            layers.turn(X, k, 1)
        return X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        theta, phi, ctx.style = inputs
        ctx.save_for_backward(theta, phi, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        theta, phi, W = ctx.saved_tensors
        d_theta, d_phi = _Gradients.apply(theta, phi, W, grad, ctx.style)  # type: ignore[no-untyped-call]
        return d_theta, None if phi is None else d_phi, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        (made,), dims = _on_folded_lanes(_Product, info.batch_size, in_dims, args)
        return made, dims[0]


class _Gradients(Function):
    """The backward pass: gradients of theta and phi, lanes in front."""

    @staticmethod
    def forward(
        theta: Tensor, phi: Tensor | None, W: Tensor, grad: Tensor, style: Style
    ) -> tuple[Tensor, Tensor]:
        layers = _Layers(theta, phi, style)
        both = torch.stack((W, grad))
        d_theta, d_phi = torch.zeros_like(theta), torch.zeros_like(theta)
        for k in reversed(range(layers.count)):
            (a, ga), (b, gb) = layers.pairs(_as_real(both), k)
            layers.at(d_theta, k).copy_((gb * a).sub_(ga * b).sum(-1, keepdim=True))
            layers.turn(both, k, -1)
            if phi is not None:
                b, gb = layers.pairs(both, k)[1]
                layers.at(d_phi, k).copy_(-(gb.conj() * b).imag.sum(-1, keepdim=True))
            layers.shift(both, k, -1)
        return d_theta, d_phi

    backward = first_derivatives_only(
        "the fast products of rotations have first derivatives only; "
        "eigensweep.models.matrices.rotations has them in plain PyTorch"
    )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> Any:
        return _on_folded_lanes(_Gradients, info.batch_size, in_dims, args)


def _on_folded_lanes(
    function: type[torch.autograd.Function],
    size: int,
    in_dims: tuple[int | None, ...],
    args: tuple[Any, ...],
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """Apply `function` once, the mapped axis of each tensor folded into its axis of lanes."""
    outputs = function.apply(*fold_lanes(size, in_dims, args))  # type: ignore[no-untyped-call]
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return tuple(torch.unflatten(o, 0, (size, -1)) for o in outputs), (0,) * len(outputs)


def _as_real(X: Tensor) -> Tensor:
    """Return a view of X as real numbers: complex entries as two, side by side."""
    return torch.view_as_real(X).flatten(-2) if X.is_complex() else X

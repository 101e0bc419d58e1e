"""The steps of a recurrence whose activation acts on pairs of units, and their form in PyTorch.

Units 2i and 2i + 1 are real and imaginary part of a complex unit. Where h is zero, the slope of
modReLU does not follow from h. So a row of H holds h, and after it z = U x_t + W h_{t-1}.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eigensweep.models.recurrence.complex_reference import FORMS, PairedActivation
from eigensweep.models.recurrence.steps import Parameters
from eigensweep.models.recurrence.symbols import add_rows, look_up


class PairedSteps:
    """`Steps` for modReLU of complex numbers. b holds each unit's threshold twice."""

    def __init__(self, parameters: Parameters, activation: PairedActivation) -> None:
        self.parameters, self.form = parameters, FORMS[activation]
        self.n = parameters.W.shape[-1]
        self.half = self.half_of(self.n)
        """Length of h in a row, padding included."""
        self.row = 2 * self.half
        self.sums: tuple[Tensor, ...] = ()

    def half_of(self, n: int) -> int:
        """Return the length of h in a row, with padding. Here there is none."""
        return n

    def forward(self, H: Tensor, x: Tensor, logits: Tensor | None) -> None:
        U, _, _, V, c = self.parameters
        z = self._arguments(H)
        if x.is_floating_point():
            torch.bmm(x.flatten(1, 2), U.mT, out=z)
        else:
            look_up(U.mT, x.flatten(1), out=z)
        self.run(H)
        if logits is not None:  # a product with few rows is twice as fast as one with few columns
            made = H[:, 1:, :, : self.n].flatten(1, 2)
            logits.flatten(1, 2).copy_(torch.baddbmm(c.unsqueeze(2), V, made.mT).mT)

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        U, W, b, V, _ = self.parameters
        self.sums = self.sums or tuple(W.new_zeros(t.shape) for t in (U.mT, W, b, V))
        dUt, dW, db, dV = self.sums
        states, d = H[..., : self.n], G[..., : self.n]
        dz, at_last = d[:, :-1].flatten(1, 2), d[:, -2].clone()
        if d_logits is None:
            dz.zero_()
        else:
            torch.bmm(d_logits.flatten(1, 2), V, out=dz)
            dV.baddbmm_(d_logits.flatten(1, 2).mT, states[:, 1:].flatten(1, 2))
        d[:, -2].add_(at_last)
        db += self.run_back(G, H)
        dW.baddbmm_(dz.mT, states[:, :-1].flatten(1, 2))
        if x.is_floating_point():
            dUt.baddbmm_(x.flatten(1, 2).mT, dz)
        else:
            add_rows(dUt, x.flatten(1), dz)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dUt, dW, db, dV = self.sums
        return dUt.mT, dW, db, dV

    def run(self, H: Tensor) -> None:
        """Write h and z into H[:, 1:], starting from H[:, 0]. On entry U x_t is in place of z."""
        Wt, b, n = self.parameters.W.mT, self.parameters.b[:, None, ::2], self.n
        h, *rest = H.unbind(1)
        for row in rest:
            z = row[..., n:].baddbmm_(h[..., :n], Wt)
            size = self._size(z)
            scale = (size + b).relu_().div_(size + self.form.below)
            torch.mul(_pairs(z), scale.unsqueeze(-1), out=_pairs(row[..., :n]))
            h = row

    def run_back(self, G: Tensor, H: Tensor) -> Tensor:
        """Write dL/dz into G[:, :-1] and return dL/db, (M, n).

        On entry G[:, :-1] holds dL/dh without the part through the next step, and G[:, -1] holds
        dL/dz of the step after the chunk. Both entries of a pair in b get half of the gradient.
        """
        W, b, n = self.parameters.W, self.parameters.b[:, None, None, ::2], self.n
        Z, shift, below = H[:, 1:, :, n:], self.form.shift, self.form.below
        # With g = dL/dh, dL/dz is scale · g + turn · ⟨g, z⟩ z, and dL/db is ⟨g, z⟩ · inverse.
        size = self._size(Z)
        inverse = (size + b > 0) / (size + below)
        length = size - shift
        turn = ((below - b) * inverse.square() / length).masked_fill_(length <= 0, 0)
        scale, along = (size + b) * inverse, torch.empty_like(inverse)
        *earlier, d = G[..., :n].unbind(1)
        for t in reversed(range(len(earlier))):
            g = earlier[t].baddbmm_(d, W)
            torch.sum(_pairs(g * Z[:, t]), -1, out=along[:, t])
            turned = (along[:, t] * turn[:, t]).unsqueeze(-1)
            _pairs(g).mul_(scale[:, t].unsqueeze(-1)).addcmul_(_pairs(Z[:, t]), turned)
            d = g
        half = along.mul_(inverse).sum((1, 2)) / 2
        return torch.stack((half, half), -1).flatten(1)

    def _arguments(self, H: Tensor) -> Tensor:
        """Return the z of all steps, (M, τ · B, n)."""
        return H[:, 1:, :, self.half : self.half + self.n].flatten(1, 2)

    def _size(self, z: Tensor) -> Tensor:
        """Return |z| as the form has it, of pairs: (..., n / 2)."""
        return _pairs(z * z).sum(-1).add_(self.form.inside).sqrt_().add_(self.form.shift)


def _pairs(z: Tensor) -> Tensor:
    return torch.unflatten(z, -1, (-1, 2))

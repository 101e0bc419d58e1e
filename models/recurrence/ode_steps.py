"""The steps of coRNN and LEM in PyTorch, with the axes of `gated_steps`.

The states are y and z, in this order. Weights are R and the constants of the cell, (M, k), which
take no gradient.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from eigensweep.models.recurrence.gated_steps import GatedSteps


class ODESteps(GatedSteps):
    """Steps of two states with constants such as Δt."""

    states = 2
    products: ClassVar[int]
    """Number of (n, n) matrices in R."""

    @property
    def numbers(self) -> tuple[Tensor, ...]:
        """The constants, each (M, 1, 1)."""
        return self.weights[1][..., None, None].unbind(1)


class CoRNNSteps(ODESteps):
    """The value of tanh is kept. R is the matrix of y above that of z; constants: Δt, γ, ε."""

    kept, back, met, products = 1, 1, 1, 2

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        R_y, R_z = (M.mT for M in torch.split(self.weights[0], self.n, 1))
        dt, gamma, epsilon = self.numbers
        y, z = S[:, :, 0].unbind(1)
        for force, later in zip(A.unbind(1), S[:, :, 1:].unbind(2), strict=True):
            force.baddbmm_(y, R_y).baddbmm_(z, R_z).tanh_()
            later[:, 1] = z + dt * (force - gamma * y - epsilon * z)
            later[:, 0] = y + dt * later[:, 1]
            y, z = later.unbind(1)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        R_y, R_z = torch.split(self.weights[0], self.n, 1)
        dt, gamma, epsilon = self.numbers
        dy, dz = carry.unbind(1)
        torch.mul(dt.unsqueeze(1), 1 - A * A, out=G)
        for t in reversed(range(G.shape[1])):
            if D is not None:
                dy += D[:, t]
            dz += dt * dy
            g = G[:, t].mul_(dz)
            dy.sub_(dt * gamma * dz).baddbmm_(g, R_y)
            dz.mul_(1 - dt * epsilon).baddbmm_(g, R_z)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        of_y, of_z = torch.split(self.sums[2], self.row, 1)
        self.add_product(of_y, G, S[:, 0, :-1])
        self.add_product(of_z, G, S[:, 1, :-1])


class LEMSteps(ODESteps):
    """Both sigmoids and both values of tanh are kept, in the order δ, δ̄, z, y; constant: Δt."""

    kept, back, met, products = 4, 4, 4, 4

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        n = self.n
        R_y, R_z = (M.mT for M in torch.split(self.weights[0], [3 * n, n], 1))
        (dt,) = self.numbers
        y, z = S[:, :, 0].unbind(1)
        for a, later in zip(A.unbind(1), S[:, :, 1:].unbind(2), strict=True):
            a[..., : 3 * n].baddbmm_(y, R_y)
            slow, quick, new_z, new_y = torch.split(a, n, -1)
            a[..., : 2 * n].sigmoid_()
            torch.lerp(z, new_z.tanh_(), dt * slow, out=later[:, 1])
            new_y.baddbmm_(later[:, 1], R_z).tanh_()
            torch.lerp(y, new_y, dt * quick, out=later[:, 0])
            y, z = later.unbind(1)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        n = self.n
        R_y, R_z = torch.split(self.weights[0], [3 * n, n], 1)
        (dt,) = self.numbers
        dy, dz = carry.unbind(1)
        slow, quick, new_z, new_y = torch.split(A, n, -1)
        to_slow, to_quick, to_z, to_y = torch.split(G, n, -1)
        each = dt.unsqueeze(1)
        torch.mul(each * (new_z - S[:, 1, :-1]), slow - slow * slow, out=to_slow)
        torch.mul(each * (new_y - S[:, 0, :-1]), quick - quick * quick, out=to_quick)
        torch.mul(each * slow, 1 - new_z * new_z, out=to_z)
        torch.mul(each * quick, 1 - new_y * new_y, out=to_y)
        for t in reversed(range(G.shape[1])):
            if D is not None:
                dy += D[:, t]
            to_quick[:, t] *= dy
            to_y[:, t] *= dy
            dz.baddbmm_(to_y[:, t], R_z)
            to_slow[:, t] *= dz
            to_z[:, t] *= dz
            dz *= 1 - dt * slow[:, t]
            dy.mul_(1 - dt * quick[:, t]).baddbmm_(G[:, t, :, : 3 * n], R_y)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        of_y, of_z = torch.split(self.sums[2], [3 * self.row, self.row], 1)
        self.add_product(of_y, self.columns(G, 0, 3), S[:, 0, :-1])
        self.add_product(of_z, self.columns(G, 3), S[:, 1, 1:])

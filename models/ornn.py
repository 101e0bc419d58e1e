"""oRNN: an orthogonal recurrence as a product of Householder reflections.

Source: Mhammedi, Hellicar, Rahman & Bailey, "Efficient Orthogonal Parametrisation of Recurrent
Neural Networks Using Householder Reflections", ICML 2017.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Literal

import torch
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.householder import normalise, reflection_parameters, reflections
from eigensweep.models.matrices.orthogonal import orthogonality_error
from eigensweep.models.network import RecurrentModel
from eigensweep.models.reflected import ReflectedConfig


class ORNNConfig(ReflectedConfig):
    """What a search may vary."""

    name: Literal["ornn"] = "ornn"

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return reflection_parameters(self.n, self.reflections) + 2 * self.n + encoder + readout


class ORNN(RecurrentModel):
    """h_t = f(U x_t + H_1 H_2 ... H_r h_{t-1} + b), f leaky ReLU of slope 0.1; h_0 is trained."""

    Config = ORNNConfig
    config: ORNNConfig
    activation = "leaky_relu"

    def __init__(self, config: ORNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        self.u = nn.Parameter(normalise(0.01 * torch.randn(n, self.config.reflections)))
        self.h0 = nn.Parameter((2 * torch.rand(n) - 1) * sqrt(3 / (2 * n)))

    def recurrent_matrix(self) -> Tensor:
        """Return H_1 ... H_r, (n, n); if r = n the last factor is the sign of u's last entry."""
        n = self.hidden_size
        if self.config.reflections < n:
            return reflections(self.u)
        sign = torch.where(self.u[-1, -1] < 0, -1.0, 1.0).to(self.u.dtype)
        last = torch.arange(n, device=self.u.device) == n - 1
        return reflections(self.u[:, :-1]) * torch.where(last, sign, 1.0)

    def initial_state(self, x: Tensor) -> Tensor:
        """Return h_0 for every sequence, (B, n)."""
        return self.h0.expand(x.shape[1], -1)

    @torch.no_grad()
    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Give the columns of u length 1 again, so that steps keep their size."""
        self.u.copy_(normalise(self.u))

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        return {"orthogonality_error": orthogonality_error(self.recurrent_matrix())}

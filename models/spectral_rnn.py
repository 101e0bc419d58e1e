"""Spectral RNN: a recurrence whose singular values stay in a band around one.

Source: Zhang, Lei & Dhillon, "Stabilizing Gradients for Deep Neural Networks via Efficient SVD
Parameterization", ICML 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.householder import normalise, reflection_parameters, reflections
from eigensweep.models.matrices.initial import Initial, draw
from eigensweep.models.matrices.orthogonal import singular_values
from eigensweep.models.network import RecurrentModel
from eigensweep.models.reflected import ReflectedConfig


class SpectralRNNConfig(ReflectedConfig):
    """What a search may vary."""

    scalars = frozenset({"margin"})

    name: Literal["spectral_rnn"] = "spectral_rnn"
    reflections: int = Field(
        16, ge=1, le=65_536, description="Number of reflections in each of P and Q, at most n"
    )
    margin: float = Field(
        0.01, ge=0, lt=1, description="Singular values of W stay within 1 ± `margin`"
    )
    readout_init: Initial = Field("truncated_normal", description="Initial V")
    readout_bias_init: Literal["zeros", "fan_in_uniform", "truncated_normal"] = Field(
        "truncated_normal",
        description="Initial c. `zeros`: 0; the others: drawn as for V, with n columns",
    )

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return 2 * reflection_parameters(self.n, self.reflections) + 2 * self.n + encoder + readout


class SpectralRNN(RecurrentModel):
    """h_t = ReLU(U x_t + P diag(σ) Qᵀ h_{t-1} + b), P and Q products of reflections.

    σ = 1 + 2 `margin` (sigmoid(p) - ½), where p is trained.
    """

    Config = SpectralRNNConfig
    config: SpectralRNNConfig
    activation = "relu"

    def __init__(self, config: SpectralRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n, r = self.hidden_size, self.config.reflections
        self.P = nn.Parameter(draw(n, r, "glorot_uniform").tril())
        self.Q = nn.Parameter(draw(n, r, "glorot_uniform").tril())
        self.p = nn.Parameter(torch.zeros(n))

    def recurrent_matrix(self) -> Tensor:
        """Return P diag(σ) Qᵀ, (n, n)."""
        sigma = 1 + self.scalar("margin") * (2 * torch.sigmoid(self.p) - 1)
        return reflections(self.P) * sigma @ reflections(self.Q).mT

    @torch.no_grad()
    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Give the columns of P and Q length 1 again."""
        self.P.copy_(normalise(self.P))
        self.Q.copy_(normalise(self.Q))

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        """Return the least and the largest singular value of W."""
        values = singular_values(self.recurrent_matrix())
        return {"singular_min": values.amin(), "singular_max": values.amax()}

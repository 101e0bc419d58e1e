"""tanh RNN: the plain network, without a constraint on W; and what similar networks share with it.

Source: Elman, Cognitive Science 1990.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.initial import Initial, draw, semi_orthogonal
from eigensweep.models.network import NetworkConfig, RecurrentModel


class FreeConfig(NetworkConfig):
    """What a search may vary where W is free."""

    lane_fields = NetworkConfig.lane_fields | {"scale"}

    recurrent_init: Literal["glorot", "orthogonal", "identity"] = Field(
        "glorot", description="Initial W: Glorot uniform, random orthogonal, or the identity"
    )
    scale: float = Field(1.0, ge=0, le=100, description="Factor of the initial W")
    encoder_init: Initial = Field("glorot_uniform", description="Initial U")

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return self.n**2 + self.n + encoder + readout


class FreeModel(RecurrentModel):
    """A recurrence whose W is a parameter as it is."""

    config: FreeConfig

    def __init__(self, config: FreeConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.W = nn.Parameter(self.config.scale * self.initial_recurrent())

    def initial_recurrent(self) -> Tensor:
        """Draw W, (n, n), before `scale`."""
        n = self.hidden_size
        match self.config.recurrent_init:
            case "glorot":
                return draw(n, n, "glorot_uniform")
            case "orthogonal":
                return semi_orthogonal(n, n)
            case "identity":
                return torch.eye(n)

    def recurrent_matrix(self) -> Tensor:
        return self.W


class TanhRNNConfig(FreeConfig):
    """What a search may vary."""

    name: Literal["tanh_rnn"] = "tanh_rnn"


class TanhRNN(FreeModel):
    """h_t = tanh(U x_t + W h_{t-1} + b); every parameter is free."""

    Config = TanhRNNConfig
    activation = "tanh"

"""Networks without a constraint on W."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from models.base import Shapes
from models.matrices.initial import Initial, draw, semi_orthogonal
from models.network import NetworkConfig, RecurrentModel


class TanhRNNConfig(NetworkConfig):
    """What a search may vary."""

    name: Literal["tanh_rnn"] = "tanh_rnn"
    recurrent_init: Literal["glorot", "orthogonal", "identity"] = Field(
        "glorot", description="Initial W: Glorot uniform, random orthogonal, or the identity"
    )
    encoder_init: Initial = Field("glorot_uniform", description="Initial U")

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return self.n**2 + self.n + encoder + readout


class TanhRNN(RecurrentModel):
    """h_t = tanh(U x_t + W h_{t-1} + b), the plain network of Elman; every parameter is free."""

    Config = TanhRNNConfig
    config: TanhRNNConfig
    activation = "tanh"

    def __init__(self, config: TanhRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        initial = {
            "glorot": lambda: draw(n, n, "glorot_uniform"),
            "orthogonal": lambda: semi_orthogonal(n, n),
            "identity": lambda: torch.eye(n),
        }
        self.W = nn.Parameter(initial[self.config.recurrent_init]())

    def recurrent_matrix(self) -> Tensor:
        return self.W

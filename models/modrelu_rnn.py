"""The modReLU network without a constraint: "RNN" and "RNN-orth" of the comparisons.

Source: Kerg et al., NeurIPS 2019, section 4, the baselines.

Departure: the published RNN-orth exponentiates PyTorch's default matrix in place of the draw it is
asked for; here W starts as its name says.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.initial import Initial, draw, semi_orthogonal, uniform
from eigensweep.models.matrices.orthogonal import initial_skew, skew
from eigensweep.models.vanilla import FreeConfig, FreeModel


class ModReLURNNConfig(FreeConfig):
    """What a search may vary."""

    name: Literal["modrelu_rnn"] = "modrelu_rnn"
    recurrent_init: Literal["glorot", "orthogonal", "identity", "cayley", "henaff"] = Field(  # type: ignore[assignment]
        "glorot",
        description="Initial W: Glorot normal, random orthogonal, the identity, or exp(A) with "
        "A as in expRNN",
    )
    encoder_init: Initial = Field("glorot_normal", description="Initial U")
    readout_init: Initial = Field("glorot_normal", description="Initial V")

    def free_parameters(self, shapes: Shapes) -> int:
        return super().free_parameters(shapes) + self.n


class ModReLURNN(FreeModel):
    """h_t = modReLU(U x_t + b_u + W h_{t-1}; b): two biases, one of them a threshold."""

    Config = ModReLURNNConfig
    config: ModReLURNNConfig
    activation = "modrelu"

    def __init__(self, config: ModReLURNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        inputs = self.config.embedding_size or shapes.input_size
        self.b_u = nn.Parameter(uniform(self.hidden_size, 1, 1 / sqrt(inputs))[:, 0])

    def initial_bias(self) -> Tensor:
        return draw(self.hidden_size, 1, "small_uniform")[:, 0]

    def initial_recurrent(self) -> Tensor:
        n = self.hidden_size
        match self.config.recurrent_init:
            case "glorot":
                return draw(n, n, "glorot_normal")
            case "orthogonal":
                return semi_orthogonal(n, n)
            case "identity":
                return torch.eye(n)
            case "cayley" | "henaff" as initial:
                return exponential(skew(initial_skew(n, initial)))

    def input_matrix(self) -> Tensor:
        """Return U + b_u, a bias in each column, for symbols; [U, b_u] for values."""
        U, b_u = super().input_matrix(), self.b_u[:, None]
        return U + b_u if self.shapes.input_kind == "symbols" else torch.cat((U, b_u), 1)

    def encode_input(self, x: Tensor) -> Tensor:
        """Return symbols as they are, and [x_t, 1] for values."""
        if self.shapes.input_kind == "symbols":
            return x
        return torch.cat((x, x.new_ones(*x.shape[:2], 1)), -1)

"""What LSTM and GRU share: the gates stacked as rows of U, R and b, and how the kernel starts."""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.initial import uniform
from eigensweep.models.network import NetworkConfig, PreparedNetwork


class GatedConfig(NetworkConfig):
    """What a search may vary on every gated network."""

    gates: ClassVar[int]
    saved_values = 8
    encoder_init: ClassVar[None] = None  # type: ignore[misc]  # not a field: see `recurrent_init`

    recurrent_init: Literal["glorot_uniform", "glorot_normal"] = Field(
        "glorot_uniform",
        description="Initial [U, R]. `glorot_uniform`: uniform, scaled by the inputs and outputs "
        "of all gates together; `glorot_normal`: normal, scaled by those of each gate",
    )

    @property
    def encoder_rows(self) -> int:
        return self.gates * self.n

    @property
    def trains_encoder(self) -> bool:
        return True

    def free_parameters(self, shapes: Shapes) -> int:
        recurrent = self.gates * self.n * (self.n + 1)
        return recurrent + self.encoder_parameters(shapes) + self.readout_parameters(shapes)


class GatedNetwork(PreparedNetwork):
    """A network whose kernel is [U, R], one bias for each gate; biases start at zero."""

    config: GatedConfig

    def __init__(self, config: GatedConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.R = nn.Parameter(self._kernel(self.hidden_size))
        self.b = nn.Parameter(self.initial_bias())

    def initial_bias(self) -> Tensor:
        """Return the first b."""
        return torch.zeros(self.config.encoder_rows)

    def initial_encoder(self, width: int) -> Tensor:
        return self._kernel(width)

    def _kernel(self, columns: int) -> Tensor:
        """Draw so many columns of the kernel [U, R], scaled by the fans of the whole kernel."""
        config = self.config
        width = config.embedding_size or self.shapes.input_size
        inputs, rows = width + config.n, config.encoder_rows
        if config.recurrent_init == "glorot_uniform":
            return uniform(rows, columns, sqrt(6 / (inputs + rows)))
        return torch.randn(rows, columns) * sqrt(2 / (inputs + config.n))

    def recurrent_matrix(self) -> Tensor:
        """Return R, (gates · n, n): what the gates make of h_{t-1}."""
        return self.R

"""LSTM, as the papers use it for comparison: one bias for each gate.

    i, f, o = sigmoid(W x_t + R h_{t-1} + b),   g = tanh(W_g x_t + R_g h_{t-1} + b_g)
    c_t = f ⊙ c_{t-1} + i ⊙ g,   h_t = o ⊙ tanh(c_t)

Source: Hochreiter & Schmidhuber 1997 with a forget gate; settings of Helfrich & Ye 2020, section 5.
"""

from __future__ import annotations

from math import sqrt
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from models.base import Shapes, State
from models.matrices.initial import draw, uniform
from models.network import Network, NetworkConfig
from models.recurrence.gated_reference import Peephole, gated_states


class LSTMConfig(NetworkConfig):
    """What a search may vary."""

    name: Literal["lstm"] = "lstm"
    initial_only = NetworkConfig.initial_only | {"forget_bias"}

    recurrent_init: Literal["glorot_uniform", "glorot_normal"] = Field(
        "glorot_uniform",
        description="Initial kernel [U, R]: scaled by the fans of all gates, or of each gate",
    )
    forget_bias: float = Field(1.0, ge=-100, le=100, description="Initial bias of the forget gate")
    peephole: Literal["none", "diagonal", "output_full"] = Field(
        "none",
        description="Gates see the cell: not, unit by unit, or the output gate by a full matrix",
    )
    readout_from: Literal["state", "cell"] = Field(
        "state", description="What is read out: h, or the cell c"
    )

    @property
    def encoder_rows(self) -> int:
        return 4 * self.n

    @property
    def trains_encoder(self) -> bool:
        return True

    def free_parameters(self, shapes: Shapes) -> int:
        n = self.n
        peephole = {"none": 0, "diagonal": 3 * n, "output_full": n * n}[self.peephole]
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return 4 * n * (n + 1) + peephole + encoder + readout


class LSTM(Network):
    """The equations above, the four gates stacked as rows of U, R and b in the order i, f, o, g."""

    Config = LSTMConfig
    config: LSTMConfig

    def __init__(self, config: LSTMConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        self.R = nn.Parameter(self._kernel(n))
        bias = torch.zeros(4, n)
        bias[1] = self.config.forget_bias
        self.b = nn.Parameter(bias.flatten())
        for name in ("peephole_input_forget", "peephole_output"):
            self.register_parameter(name, None)
        if self.config.peephole == "diagonal":
            self.peephole_input_forget = nn.Parameter(torch.zeros(2 * n))
            self.peephole_output = nn.Parameter(torch.zeros(n))
        elif self.config.peephole == "output_full":
            self.peephole_output = nn.Parameter(draw(n, n, "glorot_uniform"))

    def initial_encoder(self, width: int) -> Tensor:
        return self._kernel(width)

    def _kernel(self, columns: int) -> Tensor:
        """Draw so many columns of the kernel [U, R], scaled by the fans of the whole kernel."""
        config = self.config
        width = config.embedding_size or self.shapes.input_size
        inputs, rows = width + config.n, 4 * config.n
        if config.recurrent_init == "glorot_uniform":
            return uniform(rows, columns, sqrt(6 / (inputs + rows)))
        return torch.randn(rows, columns) * sqrt(2 / (inputs + config.n))

    def recurrent_matrix(self) -> Tensor:
        """Return R, (4n, n): what the four gates make of h_{t-1}."""
        return self.R

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return (logits, (h, c))."""
        H, C = self._gated(x, state)
        seen = H if self.config.readout_from == "state" else C
        if self.shapes.readout == "last":
            seen = seen[-1]
        return linear(seen, self.V, self.c), (H[-1], C[-1])

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return self._gated(x, state)[0]

    def _gated(self, x: Tensor, state: State | None) -> tuple[Tensor, Tensor]:
        h0, c0 = (self.initial_state(x), self.initial_state(x)) if state is None else state
        return gated_states(
            x,
            self.input_matrix(),
            self.recurrent_matrix(),
            self.b,
            peephole=Peephole(self.peephole_input_forget, self.peephole_output),
            h0=h0,
            c0=c0,
        )

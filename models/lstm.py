"""LSTM, as the papers use it for comparison: one bias for each gate.

    i, f, o = sigmoid(W x_t + R h_{t-1} + b),   g = tanh(W_g x_t + R_g h_{t-1} + b_g)
    c_t = f ⊙ c_{t-1} + i ⊙ g,   h_t = o ⊙ tanh(c_t)

Source: Hochreiter & Schmidhuber 1997 with a forget gate; settings of Helfrich & Ye 2020, section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes, State
from eigensweep.models.gated import GatedConfig, GatedNetwork
from eigensweep.models.gradient_factor import multiply_gradient
from eigensweep.models.matrices.initial import draw
from eigensweep.models.recurrence.gated import lstm
from eigensweep.models.recurrence.gated_reference import Peephole, lstm_states


class LSTMConfig(GatedConfig):
    """What a search may vary."""

    name: Literal["lstm"] = "lstm"
    gates: ClassVar[int] = 4
    lane_fields = GatedConfig.lane_fields | {"forget_bias"}

    forget_bias: float = Field(1.0, ge=-100, le=100, description="Initial bias of the forget gate")
    peephole: Literal["none", "diagonal", "output_full"] = Field(
        "none",
        description="Which gates see the cell. `none`: no gate; `diagonal`: each gate, unit by "
        "unit; `output_full`: the output gate, through a full matrix",
    )
    readout_from: Literal["state", "cell"] = Field(
        "state", description="What is read out. `state`: h; `cell`: the cell c"
    )
    scale_gradient: bool = Field(
        False,
        description="Whether the gradient with respect to the states is divided by the number of "
        "steps",
    )

    def free_parameters(self, shapes: Shapes) -> int:
        n = self.n
        seen = {"none": 0, "diagonal": 3 * n, "output_full": n * n}[self.peephole]
        return seen + super().free_parameters(shapes)


class LSTM(GatedNetwork):
    """LSTM with a forget gate and one bias for each gate (Hochreiter & Schmidhuber 1997).

    The four gates are rows of U, R and b in the order i, f, o, g. The state is (h, c).
    """

    Config = LSTMConfig
    config: LSTMConfig

    def __init__(self, config: LSTMConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        for name in ("peephole_input_forget", "peephole_output"):
            self.register_parameter(name, None)
        if self.config.peephole == "diagonal":
            self.peephole_input_forget = nn.Parameter(torch.zeros(2 * n))
            self.peephole_output = nn.Parameter(torch.zeros(n))
        elif self.config.peephole == "output_full":
            self.peephole_output = nn.Parameter(draw(n, n, "glorot_uniform"))

    def initial_bias(self) -> Tensor:
        bias = torch.zeros(4, self.hidden_size)
        bias[1] = self.config.forget_bias
        return bias.flatten()

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U = self.input_matrix()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            factor = 1 / len(x) if self.config.scale_gradient else 1.0

            def scale(tensor: Tensor) -> Tensor:
                return multiply_gradient(tensor, factor)

            h0, c0 = map(scale, self._states_before(x, state))
            peephole = [None if t is None else scale(t) for t in self._peephole()]
            return lstm(
                scale(x),
                scale(U),
                scale(self.recurrent_matrix()),
                scale(self.b),
                self.V,
                self.c,
                peephole=Peephole(*peephole),
                readout_from=self.config.readout_from,
                readout=self.shapes.readout,
                h0=h0,
                c0=c0,
            )

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        h0, c0 = self._states_before(x, state)
        H, _ = lstm_states(
            x,
            self.input_matrix(),
            self.recurrent_matrix(),
            self.b,
            peephole=self._peephole(),
            h0=h0,
            c0=c0,
        )
        return H

    def _peephole(self) -> Peephole:
        return Peephole(self.peephole_input_forget, self.peephole_output)

    def _states_before(self, x: Tensor, state: State | None) -> State:
        return (self.initial_state(x), self.initial_state(x)) if state is None else state

"""GRU: two gates, one bias for each row.

    r, z = sigmoid(U x_t + R h_{t-1} + b)
    h̃ = tanh(U_h x_t + r ⊙ (R_h h_{t-1}) + b_h)      in the variant `pytorch`
    h̃ = tanh(U_h x_t + R_h (r ⊙ h_{t-1}) + b_h)      in the variant `cho`
    h_t = z ⊙ h_{t-1} + (1 - z) ⊙ h̃

Source: Cho et al. 2014, section 2.3; the first variant as in the programs that use a library's GRU.

Departure: Cho et al. leave biases out, and PyTorch has two for each row, one of them inside the
product with r. Here there is one, outside: the papers' count.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from eigensweep.models.base import State
from eigensweep.models.gated import GatedConfig, GatedNetwork
from eigensweep.models.recurrence.gated import gru
from eigensweep.models.recurrence.gated_reference import gru_states


class GRUConfig(GatedConfig):
    """What a search may vary."""

    name: Literal["gru"] = "gru"
    gates: ClassVar[int] = 3

    variant: Literal["pytorch", "cho"] = Field(
        "pytorch", description="What the reset gate multiplies. `pytorch`: R h; `cho`: h"
    )


class GRU(GatedNetwork):
    """GRU with one bias for each row (Cho et al. 2014).

    Gates and candidate are rows of U, R and b in the order r, z, h̃.
    """

    Config = GRUConfig
    config: GRUConfig

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U = self.input_matrix()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            return gru(
                x,
                U,
                self.recurrent_matrix(),
                self.b,
                self.V,
                self.c,
                variant=self.config.variant,
                readout=self.shapes.readout,
                h0=self._start(x, state),
            )

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return gru_states(
            x,
            self.input_matrix(),
            self.recurrent_matrix(),
            self.b,
            variant=self.config.variant,
            h0=self._start(x, state),
        )

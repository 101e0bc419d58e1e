"""LEM, long expressive memory: two coupled states, each with time steps that it learns.

    δ_t, δ̄_t = Δt · sigmoid(U x_t + R y_{t-1} + b)
    z_t = (1 - δ_t) ⊙ z_{t-1} + δ_t ⊙ tanh(U_z x_t + R_z y_{t-1} + b_z)
    y_t = (1 - δ̄_t) ⊙ y_{t-1} + δ̄_t ⊙ tanh(U_y x_t + R_y z_t + b_y)

Source: Rusch, Mishra, Erichson & Mahoney, ICLR 2022, section 2; first values as in the authors'
program (github.com/tk-rusch/LEM).

Departure: that program has a second bias beside b in each row. Here there is one, as in the paper.
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Literal

from pydantic import Field

from eigensweep.models.matrices.initial import Initial
from eigensweep.models.ode_network import ODEConfig, ODENetwork
from eigensweep.models.recurrence.ode import lem
from eigensweep.models.recurrence.ode_reference import lem_states


class LEMConfig(ODEConfig):
    """What a search may vary."""

    name: Literal["lem"] = "lem"
    rows: ClassVar[int] = 4
    products: ClassVar[int] = 4
    saved_values = 8
    scalars = frozenset({"dt"})

    dt: float = Field(1.0, gt=0, le=10, description="Δt, the longest time step that a unit takes")
    readout_init: Initial = Field("kaiming_normal", description="Initial V")


class LEM(ODENetwork):
    """LEM, long expressive memory in y and z (Rusch, Mishra, Erichson & Mahoney 2022).

    The rows of U, R and b are in the order δ, δ̄, z, y.
    """

    Config = LEMConfig
    config: LEMConfig
    cell = staticmethod(lem)
    cell_states = staticmethod(lem_states)

    @property
    def limit(self) -> float:
        """1/√n."""
        return 1 / sqrt(self.hidden_size)

"""coRNN: a network of coupled, damped and driven oscillators, one for each unit.

    z_t = z_{t-1} + Δt (tanh(U x_t + W y_{t-1} + 𝒲 z_{t-1} + b) - γ y_{t-1} - ε z_{t-1})
    y_t = y_{t-1} + Δt z_t

Source: Rusch & Mishra, ICLR 2021, section 2, which has V for U. The damping at step t-1 and the
first values are those of the authors' program (github.com/tk-rusch/coRNN).
"""

from __future__ import annotations

from math import sqrt
from typing import ClassVar, Literal

from pydantic import Field

from eigensweep.models.ode_network import ODEConfig, ODENetwork
from eigensweep.models.recurrence.ode import cornn
from eigensweep.models.recurrence.ode_reference import cornn_states


class CoRNNConfig(ODEConfig):
    """What a search may vary. Δt, γ and ε are by default those of sequential MNIST."""

    name: Literal["cornn"] = "cornn"
    rows: ClassVar[int] = 1
    products: ClassVar[int] = 2
    saved_values = 4
    scalars = frozenset({"dt", "gamma", "epsilon"})

    dt: float = Field(0.042, gt=0, le=10, description="Length Δt of a time step")
    gamma: float = Field(2.7, ge=0, le=10_000, description="γ, which draws y to zero: stiffness")
    epsilon: float = Field(4.7, ge=0, le=10_000, description="ε, which draws z to zero: damping")


class CoRNN(ODENetwork):
    """coRNN, coupled oscillators at y with the velocities z (Rusch & Mishra 2021).

    R holds W, which multiplies y, above 𝒲, which multiplies z.
    """

    Config = CoRNNConfig
    config: CoRNNConfig
    cell = staticmethod(cornn)
    cell_states = staticmethod(cornn_states)

    @property
    def limit(self) -> float:
        """1/√columns of [U, 𝒲, W], which is one layer of the authors' program."""
        width = self.config.embedding_size or self.shapes.input_size
        return 1 / sqrt(width + 2 * self.hidden_size)

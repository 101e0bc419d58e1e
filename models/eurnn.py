"""EURNN: a unitary or orthogonal recurrence as a product of rotations of pairs of units.

Source: Jing et al., "Tunable Efficient Unitary Neural Networks (EUNN) and their Application to
RNNs", ICML 2017; first values and the 0.01 in modReLU as in their program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad

from eigensweep.models.base import Shapes, State
from eigensweep.models.eunn import EUNNConfig, EUNNModel
from eigensweep.models.matrices.initial import uniform
from eigensweep.models.recurrence import complex as complex_recurrence
from eigensweep.models.recurrence import ungated
from eigensweep.models.recurrence.complex_reference import complex_states
from eigensweep.models.recurrence.reference import recurrent_states

EPS = 0.01
"""What modReLU adds to the modulus, above and below the fraction bar."""


class EURNNConfig(EUNNConfig):
    """What a search may vary."""

    name: Literal["eurnn"] = "eurnn"
    complex: bool = Field(
        False, description="Whether states and W are complex; otherwise they are real"
    )

    @property
    def encoder_rows(self) -> int:
        return 2 * self.n if self.complex else self.n

    @property
    def trains_encoder(self) -> bool:
        return self.complex or super().trains_encoder

    def free_parameters(self, shapes: Shapes) -> int:
        W = 2 * self.rotations + self.n if self.complex else self.rotations
        return W + self.n + self.encoder_parameters(shapes) + self.readout_parameters(shapes)


class EURNN(EUNNModel):
    """h_t = modReLU(U x_t + W h_{t-1}; b), y_t = V Re h_t + c, with W = D times rotations.

    modReLU is z / (|z| + 0.01) · max(|z| + 0.01 + b, 0) for complex z, U then (2n, m) with the real
    parts first; and sign(z) · max(|z| + 0.01 + b, 0) for real z, without D = diag(e^{iω}).
    """

    Config = EURNNConfig
    config: EURNNConfig

    def __init__(self, config: EURNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes, phases=config.complex)
        n = self.hidden_size
        self.b = nn.Parameter(torch.zeros(n))
        self.register_parameter("omega", None)
        if self.config.complex:
            self.omega = nn.Parameter(uniform(1, n, torch.pi)[0])

    def recurrent_matrix(self) -> Tensor:
        """Return W, (n, n): complex, or real."""
        W = self.rotation()
        if self.omega is None:
            return W
        return torch.complex(self.omega.cos(), self.omega.sin()).unsqueeze(-1) * W

    def initial_state(self, x: Tensor) -> Tensor:
        """Return h_0 = 0, (B, n): complex, or real."""
        h0 = super().initial_state(x)
        return torch.complex(h0, h0) if self.config.complex else h0

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U, W, readout = self.input_matrix(), self.recurrent_matrix(), self.shapes.readout

        def real(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            return ungated.recur(
                x,
                U,
                W,
                self.b + EPS,
                self.V,
                self.c,
                activation="modrelu",
                readout=readout,
                h0=self._start(x, state),
            )

        def complex_(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            return complex_recurrence.recur(
                x,
                U,
                W,
                self.b,
                pad(self.V, (0, self.hidden_size)),
                self.c,
                activation="shifted_modrelu",
                readout=readout,
                h0=self._start(x, state),
            )

        return complex_ if self.config.complex else real

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return h at every step, (τ, B, n), complex or real, by the readable reference."""
        U, W, h0 = self.input_matrix(), self.recurrent_matrix(), self._start(x, state)
        if self.config.complex:
            return complex_states(x, U, W, self.b, activation="shifted_modrelu", h0=h0)
        return recurrent_states(x, U, W, self.b + EPS, activation="modrelu", h0=h0)

"""The cell of restricted and full uRNN; they differ in how W is made.

Source: Arjovsky, Shah & Bengio, ICML 2016, section 4; first values as in their program.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import sqrt

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes, State
from eigensweep.models.matrices.initial import Initial, draw, uniform
from eigensweep.models.matrices.orthogonal import orthogonality_error
from eigensweep.models.network import NetworkConfig, PreparedNetwork
from eigensweep.models.recurrence.complex import recur
from eigensweep.models.recurrence.complex_reference import complex_states


class ComplexConfig(NetworkConfig):
    """What a search may vary."""

    saved_values = 8

    encoder_init: Initial = Field("glorot_uniform", description="Initial U")

    @property
    def encoder_rows(self) -> int:
        return 2 * self.n

    @property
    def readout_columns(self) -> int:
        return 2 * self.n

    @property
    def trains_encoder(self) -> bool:
        return True

    def cell_parameters(self, shapes: Shapes) -> int:
        """Return the count of all but W: U, b, h_0, V and c."""
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return encoder + self.n + 2 * self.n + readout


class ComplexNetwork(PreparedNetwork):
    """h_t = modReLU(U x_t + W h_{t-1}; b) in complex numbers, y_t = V [Re h_t; Im h_t] + c.

    modReLU is smoothed: z · max(r + b, 0) / (r + 1e-5) with r = sqrt(|z|² + 1e-5). Stored is real:
    U (2n, m) and h0 (2n,), real parts first. h_0 is trained.
    """

    config: ComplexConfig

    def __init__(self, config: ComplexConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        self.b = nn.Parameter(draw(n, 1, "small_uniform")[:, 0])
        self.h0 = nn.Parameter(uniform(1, 2 * n, sqrt(3 / (2 * n)))[0])

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """Return W, complex (n, n)."""

    def initial_state(self, x: Tensor) -> Tensor:
        """Return h_0 for every sequence, complex (B, n)."""
        return torch.complex(*self.h0.chunk(2)).expand(x.shape[1], -1)

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U, W = self.input_matrix(), self.recurrent_matrix()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            return recur(
                x,
                U,
                W,
                self.b,
                self.V,
                self.c,
                activation="smoothed_modrelu",
                readout=self.shapes.readout,
                h0=self._start(x, state),
            )

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return h at every step, complex (τ, B, n), by the readable reference."""
        return complex_states(
            x,
            self.input_matrix(),
            self.recurrent_matrix(),
            self.b,
            activation="smoothed_modrelu",
            h0=self._start(x, state),
        )

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        return {"orthogonality_error": orthogonality_error(self.recurrent_matrix())}

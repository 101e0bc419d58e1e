"""GORU: a gated recurrence whose candidate rotates the state.

    r, z = sigmoid(U x_t + R h_{t-1} + b)
    h̃ = modReLU(U_c x_t + r ⊙ (W h_{t-1}); b_c),   h_t = z ⊙ h_{t-1} + (1 - z) ⊙ h̃

Source: Jing et al., "Gated Orthogonal Recurrent Units: On Learning to Forget", 2017; first values
and the 0.001 in modReLU as in their program.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes, State
from eigensweep.models.eunn import EUNNConfig, EUNNModel
from eigensweep.models.matrices.initial import draw, uniform
from eigensweep.models.recurrence.goru import goru
from eigensweep.models.recurrence.goru_reference import goru_states

EPS = 0.001
"""What modReLU adds to the modulus."""


class GORUConfig(EUNNConfig):
    """What a search may vary."""

    name: Literal["goru"] = "goru"
    style: Literal["tunable", "fft"] = Field(
        "fft",
        description="Which units each layer rotates in pairs. `tunable`: neighbours, in "
        "`capacity` layers; `fft`: units as in a fast Fourier transform, in log2 n "
        "layers",
    )

    @property
    def encoder_rows(self) -> int:
        return 3 * self.n

    @property
    def trains_encoder(self) -> bool:
        return True

    def free_parameters(self, shapes: Shapes) -> int:
        n = self.n
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return 2 * n**2 + 3 * n + self.rotations + encoder + readout


class GORU(EUNNModel):
    """GORU: a gated recurrence whose candidate rotates the state (Jing et al. 2017).

    The rows of U and b are in the order r, z, candidate.
    W is orthogonal, a product of real rotations; modReLU is sign(u) · max(|u| + 0.001 + b, 0).
    """

    Config = GORUConfig
    config: GORUConfig

    def __init__(self, config: GORUConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        self.R = nn.Parameter(draw(2 * n, n, "small_uniform"))
        parts = (torch.full((n,), 2.0), uniform(1, n, sqrt(3 / n))[0], torch.full((n,), 0.01))
        self.b = nn.Parameter(torch.cat(parts))

    def recurrent_matrix(self) -> Tensor:
        return self.rotation()

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U, R, b, threshold = self._matrices()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            h0, readout = self._start(x, state), self.shapes.readout
            return goru(x, U, R, b, threshold, self.V, self.c, readout=readout, h0=h0)

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return goru_states(x, *self._matrices(), h0=self._start(x, state))

    def _matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return U, [R; W], the biases of the gates, and the threshold of modReLU."""
        b, threshold = torch.split(self.b, [2 * self.hidden_size, self.hidden_size])
        stacked = torch.cat((self.R, self.recurrent_matrix()))
        return self.input_matrix(), stacked, b, threshold + EPS

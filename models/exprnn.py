"""expRNN: an orthogonal recurrence as the exponential of a skew-symmetric matrix; and dtriv.

Source: Lezcano-Casado & Martínez-Rubio, ICML 2019, section 3; Lezcano-Casado, NeurIPS 2019.

Departure: W = B exp(A) in column convention, as in asRNN's port; the original program has the
factors the other way round. See `eigensweep.models.trivialization.py` for when the base moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from eigensweep.models.base import ParamGroup, Shapes
from eigensweep.models.matrices.initial import Initial, draw
from eigensweep.models.matrices.orthogonal import InitialSkew, initial_skew, orthogonality_error
from eigensweep.models.network import RecurrentModel
from eigensweep.models.trivialization import Trivialization, TrivializationConfig


class ExpRNNConfig(TrivializationConfig):
    """What a search may vary."""

    name: Literal["exprnn"] = "exprnn"
    recurrent_init: InitialSkew = Field("henaff", description="Distribution of the initial A")
    encoder_init: Initial = Field("kaiming_normal", description="Initial U")
    readout_init: Initial = Field("kaiming_normal", description="Initial V")

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return self.n * (self.n - 1) // 2 + self.n + encoder + readout


class ExpRNN(RecurrentModel):
    """h_t = modReLU(U x_t + W h_{t-1}; b), with W = B exp(A) orthogonal."""

    Config = ExpRNNConfig
    config: ExpRNNConfig
    activation = "modrelu"

    def __init__(self, config: ExpRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        X = initial_skew(self.hidden_size, self.config.recurrent_init)
        self.recurrent = Trivialization(X, self.config)

    def initial_bias(self) -> Tensor:
        return draw(self.hidden_size, 1, "small_uniform")[:, 0]

    def recurrent_matrix(self) -> Tensor:
        return self.recurrent()

    def param_groups(self) -> list[ParamGroup]:
        A = self.recurrent.A
        return [ParamGroup("orth", [A]), ParamGroup("main", self.others(A))]

    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        self.recurrent.after_update(self.scalar("rebase_every"), self.scalar("project_every"))

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        return {"orthogonality_error": orthogonality_error(self.recurrent_matrix())}

"""asRNN: an orthogonal recurrence whose saturation is learned.

Source: Nguyen-Duy, Pham & Nguyen, "Adaptive-saturated RNN", ICLR 2023 tiny papers, section 2.

Departure: the logarithm of U_f is trained with `lr`, as in the authors' program, and only that of W
with `lr_orth`; the base of a dynamic trivialisation moves as `models/trivialization.py` says.

With a = b = 0 s stays zero for ever, since |s| has no slope there: d = ε, the network is linear up
to ε², and U_f drifts on rounding errors without effect. That is the authors' copying setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from eigensweep.models.base import ParamGroup, Shapes, State
from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.initial import Initial
from eigensweep.models.matrices.orthogonal import (
    InitialSkew,
    initial_skew,
    orthogonality_error,
    skew,
)
from eigensweep.models.network import RecurrentModel
from eigensweep.models.recurrence.reference import project
from eigensweep.models.recurrence.ungated import recur
from eigensweep.models.trivialization import Trivialization, TrivializationConfig


class AsRNNConfig(TrivializationConfig):
    """What a search may vary."""

    scalars = TrivializationConfig.scalars | {"eps"}
    lane_fields = TrivializationConfig.lane_fields | {"a", "b"}

    name: Literal["asrnn"] = "asrnn"
    a: float = Field(0.02, ge=-100, le=100, description="Smallest initial s in d = |s| + ε")
    b: float = Field(
        0.02, ge=-100, le=100, description="Largest initial s; with a = b all entries are equal"
    )
    eps: float = Field(0.01, ge=0, le=100, description="ε of d = |s| + ε")
    form: Literal["similarity", "direct"] = Field(
        "similarity",
        description="How a step is computed. `similarity`: one tanh recurrence of W_f h; "
        "`direct`: as in the paper, with three products; both give the same network",
    )
    constrain_hh: bool = Field(
        True, description="Whether W stays orthogonal; if false, it is only orthogonal at the start"
    )
    recurrent_init: InitialSkew = Field("cayley", description="Distribution of the initial A of W")
    encoder_init: Initial = Field("orthogonal", description="Initial U")
    readout_init: Initial = Field("kaiming_normal", description="Initial V")

    def resolve(self, shapes: Shapes) -> Self:
        if self.a > self.b:
            raise ValueError(f"asrnn: 'a' is {self.a}; allowed is up to 'b', {self.b}")
        if self.a == self.b == self.eps == 0:
            raise ValueError("asrnn: with 'a' and 'b' 0, 'eps' is above 0: W_f is inverted")
        return super().resolve(shapes)

    def free_parameters(self, shapes: Shapes) -> int:
        n = self.n
        rotation = n * (n - 1) // 2
        W = rotation if self.constrain_hh else n * n
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return W + rotation + 2 * n + encoder + readout


class AsRNN(RecurrentModel):
    """h_t = W_f⁻¹ tanh(W_f (U x_t + W h_{t-1} + b)), with W_f = U_f diag(d), d = |s| + ε.

    U_f and W are orthogonal. In g = W_f h it is a plain tanh network with W_f U, W_f W W_f⁻¹ and
    W_f b in the places of U, W and b. The state that is carried is h in either form.
    """

    Config = AsRNNConfig
    config: AsRNNConfig
    activation = "tanh"

    def __init__(self, config: AsRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        config = self.config
        n, X = config.n, initial_skew(config.n, config.recurrent_init)
        self.register_parameter("W", None)
        self.register_module("recurrent", None)
        if config.constrain_hh:
            self.recurrent = Trivialization(X, config)
        else:
            self.W = nn.Parameter(exponential(skew(X)))
        self.saturation = Trivialization(torch.zeros(n, n), config)
        self.s = nn.Parameter(config.a + (config.b - config.a) * torch.rand(n))

    def recurrent_matrix(self) -> Tensor:
        """Return W, (n, n): orthogonal unless `constrain_hh` is off."""
        return self.W if self.recurrent is None else self.recurrent()

    def saturation_matrix(self) -> tuple[Tensor, Tensor]:
        """Return W_f and its inverse, each (n, n)."""
        U_f, d = self.saturation(), self.scale()
        return U_f * d, (U_f / d).mT

    def scale(self) -> Tensor:
        """Return d, (n,)."""
        return self.s.abs() + self.scalar("eps")

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        return self._direct() if self.config.form == "direct" else self._similar()

    def _similar(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        W_f, inverse = self.saturation_matrix()
        U, W, b, V = (
            W_f @ self.input_matrix(),
            W_f @ self.recurrent_matrix() @ inverse,
            W_f @ self.b,
            self.V @ inverse,
        )

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            start = self._start(x, state)
            logits, g = recur(
                x,
                U,
                W,
                b,
                V,
                self.c,
                activation="tanh",
                readout=self.shapes.readout,
                h0=start if state is None else linear(start, W_f),  # W_f 0 = 0
            )
            return logits, linear(g, inverse)

        return run

    def _direct(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        history = self._history()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            H = history(x, state)
            seen = H if self.shapes.readout == "all" else H[-1]
            return linear(seen, self.V, self.c), H[-1]

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return self._history()(x, state)

    def _history(self) -> Callable[[Tensor, State | None], Tensor]:
        U, W = self.input_matrix(), self.recurrent_matrix()
        W_f, inverse = self.saturation_matrix()

        def run(x: Tensor, state: State | None) -> Tensor:
            h, H = self._start(x, state), []
            for Ux_b in project(x, U, self.b):
                h = linear(torch.tanh(linear(Ux_b + linear(h, W), W_f)), inverse)
                H.append(h)
            return torch.stack(H)

        return run

    def param_groups(self) -> list[ParamGroup]:
        orth = self.W if self.recurrent is None else self.recurrent.A
        logarithm = self.saturation.A  # decay would pull U_f to its base
        return [
            ParamGroup("orth", [orth]),
            ParamGroup("main", self.others(orth, logarithm)),
            ParamGroup("saturation", [logarithm], {"weight_decay": 0.0}),
        ]

    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        rebase_every, project_every = self.scalar("rebase_every"), self.scalar("project_every")
        for rotation in (self.recurrent, self.saturation):
            if rotation is not None:
                rotation.after_update(rebase_every, project_every)

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        """Return the larger error of U_f and W, and the range of d: W_f is inverted by its ends."""
        error = orthogonality_error(self.saturation())
        if self.recurrent is not None:
            error = torch.maximum(error, orthogonality_error(self.recurrent()))
        d = self.scale()
        return {"orthogonality_error": error, "d_min": d.amin(), "d_max": d.amax()}

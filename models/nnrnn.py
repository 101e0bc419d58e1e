"""nnRNN: the eigenvalues of an orthogonal matrix, and eigenvectors that need not be orthogonal.

Source: Kerg et al., "Non-normal Recurrent Neural Network (nnRNN)", NeurIPS 2019, section 2; the L1
form of the penalty: Jahagirdar et al., reproduction study, section 5.

Departure: the published program exponentiates memory that was never set in place of the initial
logarithm of P (`recurrent_init: identity` comes near it), and its mask of T takes in one entry of
each rotation, so that T moves the eigenvalues (`mask: code`).
"""

from __future__ import annotations

from math import pi
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import ParamGroup, Shapes
from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.initial import Initial, draw
from eigensweep.models.matrices.orthogonal import (
    initial_skew,
    orthogonality_error,
    singular_values,
    skew,
)
from eigensweep.models.network import NetworkConfig, RecurrentModel


class NNRNNConfig(NetworkConfig):
    """What a search may vary. n is even."""

    scalars = frozenset({"gamma_weight"})
    lane_fields = NetworkConfig.lane_fields | {"t_decay"}

    name: Literal["nnrnn"] = "nnrnn"
    gamma_penalty: Literal["l2", "l1"] = Field(
        "l2", description="Penalty on the radii γ. `l2`: sum of (1 - γ)²; `l1`: sum of |1 - γ|"
    )
    gamma_weight: float = Field(1e-4, ge=0, le=1e6, description="Factor δ of this penalty")
    t_decay: float = Field(
        1e-6, ge=0, le=1, description="L2 penalty on T, added to the gradient; adamw: T shrinks"
    )
    mask: Literal["block", "code"] = Field(
        "block",
        description="Entries of T that are trained. `block`: those below the 2x2 blocks; `code`: "
        "those below the diagonal, as in the authors' program",
    )
    recurrent_init: Literal["cayley", "henaff", "random", "identity"] = Field(
        "henaff", description="Distribution of the initial logarithm of P; `identity`: zero"
    )
    encoder_init: Initial = Field("glorot_normal", description="Initial U")
    readout_init: Initial = Field("glorot_normal", description="Initial V")

    @property
    def size_step(self) -> int:
        return 2

    def free_parameters(self, shapes: Shapes) -> int:
        n, pairs = self.n, self.n // 2
        below = n * (n - 1) // 2
        T = below - (pairs if self.mask == "block" else 0)
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return below + T + 2 * pairs + n + encoder + readout


class NNRNN(RecurrentModel):
    """h_t = modReLU(U x_t + P (Λ + T) Pᵀ h_{t-1}; b).

    P is orthogonal, Λ block diagonal of rotations by θ_i scaled by γ_i, T strictly lower block
    triangular: the eigenvalues are γ_i e^{±iθ_i} whatever T is.
    """

    Config = NNRNNConfig
    config: NNRNNConfig
    activation = "modrelu"

    def __init__(self, config: NNRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n, initial = self.hidden_size, self.config.recurrent_init
        self.A = nn.Parameter(
            torch.zeros(n, n) if initial == "identity" else initial_skew(n, initial)
        )
        self.theta = nn.Parameter(2 * pi * torch.rand(n // 2))
        self.gamma = nn.Parameter(torch.ones(n // 2))
        self.T = nn.Parameter(torch.zeros(n, n))

    def initial_bias(self) -> Tensor:
        return draw(self.hidden_size, 1, "small_uniform")[:, 0]

    def recurrent_matrix(self) -> Tensor:
        """Return P (Λ + T) Pᵀ with P = exp(A), (n, n)."""
        P = self.eigenbasis()
        return P @ (self.rotations() + self.T * self.mask()) @ P.mT

    def eigenbasis(self) -> Tensor:
        """Return P, (n, n); `self.A` holds its logarithm above the diagonal."""
        return exponential(skew(self.A))

    def rotations(self) -> Tensor:
        """Return Λ, (n, n), of blocks γ [[cos θ, -sin θ], [sin θ, cos θ]]."""
        real, imaginary = self.gamma * self.theta.cos(), self.gamma * self.theta.sin()
        diagonal = torch.stack((real, real), -1).flatten()
        below = torch.stack((imaginary, torch.zeros_like(imaginary)), -1).flatten()[:-1]
        return below.diag_embed(-1) + diagonal.diag_embed() - below.diag_embed(1)

    def mask(self) -> Tensor:
        """Return 1 where T has entries, 0 elsewhere."""
        place = torch.arange(self.hidden_size, device=self.T.device)
        if self.config.mask == "block":
            place = place // 2
        return (place[:, None] > place).to(self.T.dtype)

    def param_groups(self) -> list[ParamGroup]:
        return [
            ParamGroup("orth", [self.A]),
            ParamGroup("T", [self.T], {"weight_decay": self.config.t_decay}),
            ParamGroup("main", self.others(self.A, self.T)),
        ]

    def penalty(self) -> Tensor:
        """Return δ Σ (1 - γ)², or δ Σ |1 - γ|."""
        distance = (1 - self.gamma).abs()
        if self.config.gamma_penalty == "l2":
            distance = distance.square()
        return self.scalar("gamma_weight") * distance.sum()

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        """Return the error of P, the range of γ, and the norm of W: above 1, states may grow."""
        return {
            "orthogonality_error": orthogonality_error(self.eigenbasis()),
            "gamma_min": self.gamma.amin(),
            "gamma_max": self.gamma.amax(),
            "norm": singular_values(self.recurrent_matrix()).amax(),
        }

"""scoRNN: a recurrence kept orthogonal by a scaled Cayley transform.

Source: Helfrich, Willmott & Ye, ICML 2018, section 3.
"""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import ParamGroup, Shapes
from eigensweep.models.matrices.orthogonal import (
    InitialSkew,
    cayley,
    initial_skew,
    orthogonality_error,
    skew,
)
from eigensweep.models.network import (
    NetworkConfig,
    RecurrentModel,
    negative_count,
    require_at_most,
    require_one,
)


class ScoRNNConfig(NetworkConfig):
    """What a search may vary."""

    lane_fields = NetworkConfig.lane_fields | {"negative_ones"}

    name: Literal["scornn"] = "scornn"
    negative_ones: int | None = Field(
        None,
        ge=0,
        le=65_536,
        description="Number of entries -1 on the diagonal of D; or give `negative_fraction`",
    )
    negative_fraction: float | None = Field(
        None,
        ge=0,
        le=1,
        description="These entries as a share of the state, in whole percent; or give "
        "`negative_ones`",
    )
    recurrent_init: InitialSkew = Field("cayley", description="Distribution of the initial A")

    def resolve(self, shapes: Shapes) -> Self:
        require_one(self, "negative_ones", "negative_fraction")
        config = super().resolve(shapes)
        require_at_most(config, "negative_ones", config.n, "the hidden size")
        return config

    @property
    def smallest_size(self) -> int:
        return max(1, self.negative_ones or 0)

    def at_size(self, hidden_size: int) -> Self:
        config = super().at_size(hidden_size)
        if self.negative_fraction is None:
            return config
        count = negative_count(self.negative_fraction, hidden_size)
        return config.model_copy(update={"negative_ones": count, "negative_fraction": None})

    def free_parameters(self, shapes: Shapes) -> int:
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return self.n * (self.n - 1) // 2 + self.n + encoder + readout


class ScoRNN(RecurrentModel):
    """h_t = modReLU(U x_t + W h_{t-1}; b), with W orthogonal at every step of training."""

    Config = ScoRNNConfig
    config: ScoRNNConfig
    activation = "modrelu"
    D: Tensor

    def __init__(self, config: ScoRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        config = self.config
        assert config.negative_ones is not None
        self.A = nn.Parameter(initial_skew(config.n, config.recurrent_init))
        self.register_buffer("D", signs(config.n, config.negative_ones))

    def recurrent_matrix(self) -> Tensor:
        """Return W = (I + A)⁻¹ (I - A) D, (n, n); `self.A` holds A above its diagonal."""
        return cayley(skew(self.A)) * self.D

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup("orth", [self.A]), ParamGroup("main", self.others(self.A))]

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        return {"orthogonality_error": orthogonality_error(self.recurrent_matrix())}


def signs(n: int, negative_ones: int) -> Tensor:
    """Return the diagonal of D: ones, the last `negative_ones` of them negative.

    >>> signs(3, 1).tolist()
    [1.0, 1.0, -1.0]
    """
    return torch.where(torch.arange(n) < n - negative_ones, 1.0, -1.0)

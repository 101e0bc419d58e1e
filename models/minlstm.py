"""minLSTM: an LSTM whose gates do not see the state, and share one unit of weight.

Source: Feng, Tung, Ahmed, Bengio & Hajimirsadeghi, Were RNNs All We Needed?, 2024. Equations and
departures: `models/minimal.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import softplus

from eigensweep.models.minimal import MinimalConfig, MinimalLayer, MinimalNetwork


class MinLSTMConfig(MinimalConfig):
    """What a search may vary."""

    name: Literal["minlstm"] = "minlstm"
    gates: ClassVar[int] = 3
    lane_fields = MinimalConfig.lane_fields | {"forget_bias"}

    forget_bias: float = Field(
        0.0, ge=-100, le=100, description="Added to the forget gate's initial bias"
    )


class MinLSTMLayer(MinimalLayer):
    """h_t = f' ⊙ h_{t-1} + i' ⊙ h̃_t; rows of G and g are h̃, f, i."""

    def __init__(self, config: MinLSTMConfig) -> None:
        super().__init__(config)
        with torch.no_grad():
            self.g[config.n : 2 * config.n] += config.forget_bias

    def shares(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        f, i = gates.chunk(2, -1)
        more = softplus(-i) - softplus(-f)  # log f - log i
        return torch.sigmoid(more), torch.sigmoid(-more)


class MinLSTM(MinimalNetwork):
    """Layers of an LSTM whose gates do not see the state (Feng et al. 2024)."""

    Config = MinLSTMConfig
    config: MinLSTMConfig

    def make_layer(self) -> MinLSTMLayer:
        return MinLSTMLayer(self.config)

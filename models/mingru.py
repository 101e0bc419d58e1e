"""minGRU: a GRU whose gate does not see the state.

Source: Feng, Tung, Ahmed, Bengio & Hajimirsadeghi, Were RNNs All We Needed?, 2024. Equations and
departures: `models/minimal.py`.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from eigensweep.models.minimal import MinimalConfig, MinimalLayer, MinimalNetwork


class MinGRUConfig(MinimalConfig):
    """What a search may vary."""

    name: Literal["mingru"] = "mingru"
    gates: ClassVar[int] = 2


class MinGRULayer(MinimalLayer):
    """h_t = (1 - z_t) ⊙ h_{t-1} + z_t ⊙ h̃_t; rows of G and g are h̃, z."""

    def shares(self, gates: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(-gates), torch.sigmoid(gates)


class MinGRU(MinimalNetwork):
    """Layers of a GRU whose gate does not see the state (Feng et al. 2024)."""

    Config = MinGRUConfig
    config: MinGRUConfig

    def make_layer(self) -> MinGRULayer:
        return MinGRULayer(self.config)

"""What oRNN and Spectral RNN share: how many Householder reflections make an orthogonal factor."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.initial import Initial
from eigensweep.models.network import NetworkConfig, require_at_most


class ReflectedConfig(NetworkConfig):
    """What a search may vary on networks of reflections: n is at least their number."""

    reflections: int = Field(
        16, ge=1, le=65_536, description="Number of reflections in W, at most n"
    )
    encoder_init: Initial = Field("glorot_uniform", description="Initial U")

    def resolve(self, shapes: Shapes) -> Self:
        config = super().resolve(shapes)
        require_at_most(config, "reflections", config.n, "the hidden size", least=1)
        return config

    @property
    def smallest_size(self) -> int:
        return self.reflections

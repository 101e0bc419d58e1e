"""sRNN: the simple recurrent network that Henaff et al. compare with their linear transition.

Source: Henaff, Szlam & LeCun, "Recurrent Orthogonal Networks and Long-Memory Tasks", ICML 2016,
section 2.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from eigensweep.models.base import Shapes
from eigensweep.models.vanilla import FreeConfig, FreeModel


class SRNNConfig(FreeConfig):
    """What a search may vary."""

    name: Literal["srnn"] = "srnn"
    activation: Literal["tanh", "relu"] = Field("tanh", description="Nonlinearity")
    readout_bias: bool = Field(
        False, description="Whether c is trained, starting from zero; otherwise it is zero"
    )
    readout_bias_init: ClassVar[Literal["zeros"]] = "zeros"  # type: ignore[misc]  # not a field

    @property
    def trains_readout_bias(self) -> bool:
        return self.readout_bias


class SRNN(FreeModel):
    """h_t = f(U x_t + W h_{t-1} + b), y_t = V h_t."""

    Config = SRNNConfig
    config: SRNNConfig

    def __init__(self, config: SRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.activation = self.config.activation

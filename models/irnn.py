"""IRNN: rectified units whose recurrent matrix starts as the identity.

Source: Le, Jaitly & Hinton, "A Simple Way to Initialize Recurrent Networks of Rectified Linear
Units", 2015, section 2.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from eigensweep.models.matrices.initial import Initial
from eigensweep.models.vanilla import FreeConfig, FreeModel


class IRNNConfig(FreeConfig):
    """What a search may vary."""

    name: Literal["irnn"] = "irnn"
    recurrent_init: Literal["glorot", "orthogonal", "identity"] = Field(
        "identity", description="Initial W: the identity, Glorot uniform, or random orthogonal"
    )
    encoder_init: Initial = Field("tiny_normal", description="Initial U")
    readout_init: Initial = Field("tiny_normal", description="Initial V")


class IRNN(FreeModel):
    """h_t = ReLU(U x_t + W h_{t-1} + b), starting from W = `scale` · I and b = 0."""

    Config = IRNNConfig
    activation = "relu"

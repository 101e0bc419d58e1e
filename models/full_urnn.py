"""uRNN of full capacity: any unitary matrix, kept unitary by its own update rule.

Source: Wisdom, Powers, Hershey, Le Roux & Atlas, "Full-Capacity Unitary Recurrent Neural
Networks", NeurIPS 2016, section 3.

Departure: both published programs leave the imaginary part of the last state out of the gradient
of W; here it is whole.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import ParamGroup, Shapes
from eigensweep.models.cayley_unitary import CayleyUnitary
from eigensweep.models.complex_network import ComplexConfig, ComplexNetwork
from eigensweep.models.matrices.orthogonal import nearest_orthogonal
from eigensweep.models.matrices.unitary import initial_factors, restricted_product


class FullURNNConfig(ComplexConfig):
    """What a search may vary."""

    name: Literal["full_urnn"] = "full_urnn"
    recurrent_init: Literal["restricted", "polar"] = Field(
        "restricted",
        description="Initial W. `restricted`: a random W of the restricted uRNN; `polar`: the "
        "unitary factor of a complex Gaussian matrix",
    )
    natgrad_rms: bool = Field(
        False, description="Whether each entry of the gradient of W is scaled, as in RMSprop"
    )

    def free_parameters(self, shapes: Shapes) -> int:
        return self.n**2 + self.cell_parameters(shapes)


class FullURNN(ComplexNetwork):
    """The complex cell with any unitary W, stored as W[0] + i W[1], which `CayleyUnitary` moves."""

    Config = FullURNNConfig
    config: FullURNNConfig

    def __init__(self, config: FullURNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        if self.config.recurrent_init == "restricted":
            W = restricted_product(*initial_factors(n))
        else:
            W = nearest_orthogonal(torch.complex(torch.randn(n, n), torch.randn(n, n)))
        self.W = nn.Parameter(torch.stack((W.real, W.imag)))

    def recurrent_matrix(self) -> Tensor:
        return torch.complex(self.W[0], self.W[1])

    def param_groups(self) -> list[ParamGroup]:
        rule = partial(CayleyUnitary, natgrad_rms=self.config.natgrad_rms)
        return [ParamGroup("orth", [self.W], rule=rule), ParamGroup("main", self.others(self.W))]

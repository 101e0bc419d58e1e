"""uRNN of restricted capacity: a unitary recurrence made of cheap factors, 7n parameters in all.

Source: Arjovsky, Shah & Bengio, "Unitary Evolution Recurrent Neural Networks", ICML 2016.

Departure: their program reflects with the conjugate of v, which renames the parameters. W is built
once for each update, in place of applying its factors at every step.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.complex_network import ComplexConfig, ComplexNetwork
from eigensweep.models.matrices.unitary import initial_factors, restricted_product


class URNNConfig(ComplexConfig):
    """What a search may vary."""

    name: Literal["urnn"] = "urnn"

    def free_parameters(self, shapes: Shapes) -> int:
        return 7 * self.n + self.cell_parameters(shapes)


class URNN(ComplexNetwork):
    """The complex cell with W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁, unitary for any θ and v."""

    Config = URNNConfig
    config: URNNConfig
    permutation: Tensor
    """(n,): fixed, where each unit is taken from."""

    def __init__(self, config: URNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        theta, v, permutation = initial_factors(self.hidden_size)
        self.theta, self.v = nn.Parameter(theta), nn.Parameter(v)
        self.register_buffer("permutation", permutation)

    def recurrent_matrix(self) -> Tensor:
        return restricted_product(self.theta, self.v, self.permutation)

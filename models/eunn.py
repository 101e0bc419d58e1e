"""EUNN: the rotations that EURNN and GORU share, as part of their configs and models.

Source: Jing et al., ICML 2017; their published program for first values.
"""

from __future__ import annotations

from math import log2, pi, sqrt
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes
from eigensweep.models.matrices.fast_rotations import fft_product, tunable_product
from eigensweep.models.matrices.initial import uniform
from eigensweep.models.matrices.orthogonal import orthogonality_error
from eigensweep.models.matrices.rotations import Angles
from eigensweep.models.network import NetworkConfig, PreparedNetwork


class EUNNConfig(NetworkConfig):
    """What a search may vary of the rotations. n is even, or a power of two with `style: fft`."""

    saved_values = 8

    style: Literal["tunable", "fft"] = Field(
        "tunable",
        description="Which units each layer rotates in pairs. `tunable`: neighbours, in "
        "`capacity` layers; `fft`: units as in a fast Fourier transform, in log2 n "
        "layers",
    )
    capacity: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="`tunable`: number L of layers, even and at most n; default: 2",
    )
    readout_bias_init: Literal["zeros", "hundredth", "fan_in_uniform", "truncated_normal"] = Field(
        "hundredth",
        description="Initial c. `zeros`: 0; `hundredth`: 0.01 in each entry; `fan_in_uniform` and"
        " `truncated_normal`: drawn as for V, with n columns",
    )

    def resolve(self, shapes: Shapes) -> Self:
        if self.style == "fft" and self.capacity is not None:
            raise ValueError(
                f"{self.name}: 'capacity' is given and 'style' is fft, which has log2 n layers; "
                "set 'style: tunable' or leave 'capacity' out"
            )
        if self.capacity is not None and self.capacity % 2:
            raise ValueError(
                f"{self.name}: 'capacity' is {self.capacity}; allowed are even numbers from 2 to "
                "the hidden size"
            )
        n = self.hidden_size
        if self.style == "fft" and n is not None and (n < 2 or n & (n - 1)):
            below = 1 << max(1, n.bit_length() - 1)
            raise ValueError(
                f"{self.name}: 'hidden_size' is {n}; with 'style: fft' allowed are powers of two "
                f"from 2, such as {below} and {2 * below}"
            )
        config = super().resolve(shapes)
        if config.layers > config.n:
            raise ValueError(
                f"{self.name}: 'capacity' is {config.layers}; allowed are even numbers from 2 to "
                f"{config.n}, the hidden size"
            )
        return config

    def at_size(self, hidden_size: int) -> Self:
        config = super().at_size(hidden_size)
        if self.style == "tunable" and self.capacity is None:
            config = config.model_copy(update={"capacity": 2})
        return config

    @property
    def size_step(self) -> int:
        return 2

    @property
    def smallest_size(self) -> int:
        return self.capacity or 2

    @property
    def layers(self) -> int:
        """Layers of rotations in a resolved config."""
        return self.capacity or round(log2(self.n))

    @property
    def rotations(self) -> int:
        """Count of the pairs that are rotated, over all layers."""
        n = self.n
        return self.layers * n // 2 if self.style == "fft" else self.layers * (n - 1) // 2

    def _largest_size(self, shapes: Shapes, budget: int) -> int:
        size = super()._largest_size(shapes, budget)
        return 1 << size.bit_length() - 1 if self.style == "fft" else size


class EUNNModel(PreparedNetwork):
    """A network that rotates its state by a product of pairwise rotations."""

    config: EUNNConfig
    theta: Tensor
    theta_even: Tensor
    theta_odd: Tensor
    phi: Tensor | None
    phi_even: Tensor | None
    phi_odd: Tensor | None

    def __init__(self, config: EUNNConfig, shapes: Shapes, *, phases: bool = False) -> None:
        super().__init__(config, shapes)
        for kind in ("theta", "phi"):
            drawn = kind == "theta" or phases
            if self.config.style == "fft":
                self._register(kind, self.config.layers, self.config.n // 2, drawn)
            else:
                pairs, layers = self.config.n // 2, self.config.layers // 2
                self._register(f"{kind}_even", layers, pairs, drawn)
                self._register(f"{kind}_odd", layers, pairs - 1, drawn)

    def _register(self, name: str, layers: int, pairs: int, drawn: bool) -> None:
        angles = nn.Parameter(uniform(layers, pairs, pi)) if drawn else None
        self.register_parameter(name, angles)

    def rotation(self) -> Tensor:
        """Return the product of the rotations, (n, n), complex where there are phases."""
        if self.config.style == "fft":
            return fft_product(Angles(self.theta, self.phi))
        even = Angles(self.theta_even, self.phi_even)
        return tunable_product(even, Angles(self.theta_odd, self.phi_odd))

    def initial_readout(self) -> Tensor:
        """Draw V; `glorot_uniform` takes the network's input and output size as its fans."""
        if self.config.readout_init != "glorot_uniform":
            return super().initial_readout()
        p = self.shapes.output_size
        return uniform(p, self.config.readout_columns, sqrt(6 / (self.shapes.input_size + p)))

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        return {"orthogonality_error": orthogonality_error(self.recurrent_matrix())}

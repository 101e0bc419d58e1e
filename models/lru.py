"""LRU: layers whose states are complex, linear and diagonal, with eigenvalues inside a ring.

    a = LayerNorm(u),    h_t = λ ⊙ h_{t-1} + exp(γ) ⊙ (B a_t),    λ = exp(-exp(ν) + i exp(θ))
    y_t = Re(C h_t) + D ⊙ a_t,    s = GELU(y),    u ← u + (W s + w) ⊙ sigmoid(G s + g)

λ starts uniform in the ring between the radii `r_min` and `r_max`, with phases from 0 to
`max_phase`, and |λ| < 1 at any ν. γ starts at log √(1 - |λ|²), so that h keeps the size of what
drives it.

Source: Orvieto, Smith, Gu, Fernando, Gulcehre, Pascanu & De, ICML 2023, sections 3 and 4 and
appendix A. The rest of a layer is that of the program minimal-LRU (Zucchet, at bbd71b1), which is
not the authors' and says that it has the paper's choices.

Departure: there is no dropout, and no batch normalisation, which that program has by default: a
layer's norm is its LayerNorm. That program trains B, too, at the lower rate and without decay; here
these are of ν, θ and γ alone.
"""

from __future__ import annotations

from math import log, pi
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear

from eigensweep.models.base import ParamGroup, Shapes, State
from eigensweep.models.layered import (
    NORM_EPS,
    Layer,
    LayeredConfig,
    LayeredNetwork,
    Scan,
    bias,
    matrix,
)
from eigensweep.models.recurrence.complex import interleave
from eigensweep.models.recurrence.scan_reference import as_complex

NEAREST = 1e-6
"""How near to the ends of its range a uniform number is drawn: λ is neither 0 nor 1."""


class LRUConfig(LayeredConfig):
    """What a search may vary."""

    name: Literal["lru"] = "lru"
    lane_fields = LayeredConfig.lane_fields | {"r_min", "r_max", "max_phase"}

    layers: int = Field(6, ge=1, le=64, description="Number L of layers")
    r_min: float = Field(0.0, ge=0, le=1, description="Least modulus of an initial eigenvalue")
    r_max: float = Field(1.0, ge=0, le=1, description="Largest modulus of an initial eigenvalue")
    max_phase: float = Field(
        2 * pi, gt=0, le=2 * pi, description="Largest phase of an initial eigenvalue, in radians"
    )

    def resolve(self, shapes: Shapes) -> Self:
        if self.r_min >= self.r_max:
            raise ValueError(
                f"lru: 'r_min' is {self.r_min}; allowed is below 'r_max', {self.r_max}"
            )
        return super().resolve(shapes)

    @property
    def layer_parameters(self) -> int:
        n, w = self.n, self.w
        return 2 * w + 4 * n * w + 3 * n + w + 2 * w * (w + 1)

    @property
    def layer_numbers(self) -> int:
        return 4 * self.n + 8 * self.w


class LRULayer(Layer):
    """A norm, the recurrence, and a gated linear unit, added to the layer's input.

    Stored is real: B (2n, w), the real parts of n rows first, and C (w, 2n), the real parts of n
    columns first.
    """

    carried = 1

    def __init__(self, config: LRUConfig) -> None:
        super().__init__()
        n, w = config.n, config.w
        self.n = n
        self.scale, self.shift = nn.Parameter(torch.ones(w)), nn.Parameter(torch.zeros(w))
        radius, phase = (torch.rand(n).clamp(NEAREST, 1 - NEAREST) for _ in range(2))
        modulus2 = config.r_min**2 + radius * (config.r_max**2 - config.r_min**2)
        modulus2 = modulus2.clamp(max=1 - NEAREST)
        self.nu = nn.Parameter(torch.log(-torch.log(modulus2) / 2))
        self.theta = nn.Parameter(torch.log(phase) + log(config.max_phase))
        self.gamma = nn.Parameter(torch.log1p(-modulus2) / 2)
        self.B = nn.Parameter(torch.randn(2 * n, w) / (2 * w) ** 0.5)
        self.C = nn.Parameter(torch.randn(w, 2 * n) / n**0.5)
        self.D = nn.Parameter(torch.randn(w))
        self.W, self.w = matrix(w, w), bias(w, w)
        self.G, self.g = matrix(w, w), bias(w, w)

    def eigenvalues(self) -> Tensor:
        """Return λ as pairs of real and imaginary part, (2n,)."""
        modulus, phase = torch.exp(-torch.exp(self.nu)), torch.exp(self.theta)
        return torch.stack((modulus * phase.cos(), modulus * phase.sin()), -1).flatten(-2)

    def initial_state(self, u: Tensor) -> tuple[Tensor, ...]:
        return (u.new_zeros(u.shape[1], 2 * self.n),)

    def forward(
        self, u: Tensor, carried: tuple[Tensor, ...], scan: Scan
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        (h0,) = carried
        a = layer_norm(u, u.shape[-1:], eps=NORM_EPS) * self.scale + self.shift
        B = self.B * torch.exp(self.gamma).repeat(2).unsqueeze(-1)
        H = scan(self.eigenvalues(), linear(a, interleave(B.mT).mT), h0, paired=True)
        real, imaginary = self.C.chunk(2, -1)
        y = linear(H, interleave(torch.cat((real, -imaginary), -1))) + self.D * a
        s = gelu(y)
        u = u + linear(s, self.W, self.w) * torch.sigmoid(linear(s, self.G, self.g))
        return u, H, (H[-1],)

    def recurrent_matrix(self) -> Tensor:
        return torch.diag(as_complex(self.eigenvalues()))


class LRU(LayeredNetwork):
    """Layers with complex, linear and diagonal states (Orvieto et al. 2023).

    ν, θ and γ of all layers are a group of their own, with the learning rate `lr_orth` and without
    weight decay: the paper lowers the rate of these parameters.
    """

    Config = LRUConfig
    config: LRUConfig

    def make_layer(self) -> LRULayer:
        return LRULayer(self.config)

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return h of the last layer, complex (τ, B, n), by the readable reference."""
        return as_complex(super().states(x, state))

    def param_groups(self) -> list[ParamGroup]:
        recurrent = [
            parameter
            for name, parameter in self.named_parameters()
            if name.rpartition(".")[2] in ("nu", "theta", "gamma")
        ]
        return [
            ParamGroup("orth", recurrent, {"weight_decay": 0.0}),
            ParamGroup("main", self.others(*recurrent)),
        ]

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        nu = torch.stack([layer.nu for layer in self.layers if isinstance(layer, LRULayer)])
        return {"largest_modulus": torch.exp(-torch.exp(nu.amin()))}

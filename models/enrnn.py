"""ENRNN: a long state kept by an orthogonal matrix, a short one that fades by its eigenvalues.

Source: Helfrich & Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term Memory",
AAAI 2020, sections 3 and 4.

Departure: Proposition 3.2 prints 1/(ρ+ε) where the exact gradient has 1/ρ; they agree at ε = 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import ParamGroup, Shapes
from eigensweep.models.matrices.dominant import WORTH_IT, DominantEigenvalue
from eigensweep.models.matrices.initial import draw, semi_orthogonal
from eigensweep.models.matrices.orthogonal import (
    InitialSkew,
    cayley,
    initial_skew,
    orthogonality_error,
    singular_values,
    skew,
)
from eigensweep.models.matrices.spectral_radius import (
    Fallback,
    Radius,
    find_radius,
    initial_short_block,
    is_surely_stable,
    spectral_normalise,
    spectral_radius,
)
from eigensweep.models.network import (
    NetworkConfig,
    RecurrentModel,
    even_count,
    negative_count,
    require_at_most,
    require_one,
)
from eigensweep.models.scornn import signs


class ENRNNConfig(NetworkConfig):
    """What a search may vary."""

    scalars = frozenset({"eps"})
    lane_fields = NetworkConfig.lane_fields | {"coupling_init", "negative_ones"}

    name: Literal["enrnn"] = "enrnn"
    short_size: int | None = Field(
        None,
        ge=0,
        le=65_536,
        description="Number s of short units (s = n: there is no long state); or give "
        "`short_fraction`",
    )
    short_fraction: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Short units as a share of n, in whole percent, with an even s; or give "
        "`short_size`",
    )
    coupled: bool = Field(True, description="Whether the short state enters the long state")
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
        description="These entries as a share of the long state, in whole percent; or give "
        "`negative_ones`",
    )
    eps: float = Field(0.0, ge=0, le=1, description="ε of W = T / (ρ(T) + ε)")
    activation: Literal["modrelu", "relu", "tanh"] = Field("modrelu", description="Nonlinearity")
    fallback: Fallback = Field(
        "constant_radius",
        description="What is done if the largest eigenvalue is nearly multiple, so that ρ has no "
        "usable gradient. `constant_radius`: ρ counts as a constant; `unnormalised`: "
        "T is not divided by ρ",
    )
    recurrent_init: InitialSkew = Field(
        "cayley", description="Distribution of the initial A of the long block"
    )
    coupling_init: Literal["glorot", "semi_orthogonal"] = Field(
        "glorot", description="Initial matrix from the short state to the long one"
    )

    def resolve(self, shapes: Shapes) -> Self:
        require_one(self, "short_size", "short_fraction")
        require_one(self, "negative_ones", "negative_fraction")
        config = super().resolve(shapes)
        require_at_most(config, "short_size", config.n, "the hidden size")
        require_at_most(config, "negative_ones", config.long, "the size of the long state")
        return config

    def at_size(self, hidden_size: int) -> Self:
        config = super().at_size(hidden_size)
        if self.short_fraction is not None:
            short = even_count(self.short_fraction, hidden_size)
            config = config.model_copy(update={"short_size": short, "short_fraction": None})
        if self.negative_fraction is not None:
            count = negative_count(self.negative_fraction, max(config.long, 0))
            config = config.model_copy(update={"negative_ones": count, "negative_fraction": None})
        return config

    @property
    def smallest_size(self) -> int:
        long = (self.negative_ones or 0) if self.negative_fraction is None else 0
        return max(1, (self.short_size or 0) + long)

    @property
    def short(self) -> int:
        """Size s of the short state of a resolved config."""
        assert self.short_size is not None
        return self.short_size

    @property
    def long(self) -> int:
        """Size q of the long state of a resolved config."""
        return self.n - self.short

    def free_parameters(self, shapes: Shapes) -> int:
        q, s = self.long, self.short
        recurrent = q * (q - 1) // 2 + s * s + (q * s if self.coupled else 0)
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return recurrent + self.n + encoder + readout


class ENRNN(RecurrentModel):
    """h_t = f(U x_t + [[Wᴸ, Wᶜ], [0, Wˢ]] h_{t-1} + b): the short state never sees the long."""

    Config = ENRNNConfig
    config: ENRNNConfig
    D: Tensor
    switched: Tensor
    """Whether Wˢ is normalised. It stays on from the first update after which ρ(T) > 1."""
    fallback_events: Tensor
    """How many training steps met a dominant eigenvalue that was nearly multiple."""
    host_inputs = ("T", "switched", "dominant.block", "dominant.value", "dominant.age")
    radius: Tensor
    slope: Tensor
    multiple: Tensor
    pending: Tensor

    def __init__(self, config: ENRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        config = self.config
        self.activation = config.activation
        q, s = config.long, config.short
        assert config.negative_ones is not None
        self.A = nn.Parameter(initial_skew(q, config.recurrent_init))
        self.register_buffer("D", signs(q, config.negative_ones))
        self.T = nn.Parameter(initial_short_block(s))
        self.register_parameter("coupling", None)
        if config.coupled:
            glorot = config.coupling_init == "glorot"
            W_C = draw(q, s, "glorot_uniform") if glorot else semi_orthogonal(q, s)
            self.coupling = nn.Parameter(W_C)
        self.register_buffer("switched", torch.tensor(False))
        self.register_buffer("fallback_events", torch.tensor(0))
        self.dominant = DominantEigenvalue(s) if s >= WORTH_IT else None

    def recurrent_matrix(self) -> Tensor:
        """Return [[Wᴸ, Wᶜ], [0, Wˢ]], (n, n): Wˢ is T before the switch, T / (ρ + ε) after."""
        W_L, W_S = self.long_block(), self.short_block()
        q, s = self.config.long, self.config.short
        W_C = W_L.new_zeros(q, s) if self.coupling is None else self.coupling
        above, below = torch.cat((W_L, W_C), -1), torch.cat((W_S.new_zeros(s, q), W_S), -1)
        return torch.cat((above, below), -2)

    def state_blocks(self) -> dict[str, slice]:
        """Return where hᴸ and hˢ lie; one of no units is left out."""
        q, n = self.config.long, self.hidden_size
        blocks = {"long": slice(0, q), "short": slice(q, n)}
        return {name: block for name, block in blocks.items() if block.stop > block.start}

    def long_block(self) -> Tensor:
        """Return Wᴸ = (I + A)⁻¹ (I - A) D, (q, q), as in scoRNN."""
        return cayley(skew(self.A)) * self.D

    def short_block(self) -> Tensor:
        """Return Wˢ, (s, s), and count the fallback where it is trained."""
        eps, fallback = self.scalar("eps"), self.config.fallback
        known = None
        if self.reads_host_values:
            known = Radius(self.radius, self.slope, self.multiple)
        W_S, multiple = spectral_normalise(
            self.T, self.switched, eps, fallback, self._near(), known
        )
        if self.training and torch.is_grad_enabled():
            self.fallback_events.add_(multiple)
        return W_S

    def _near(self) -> Tensor | None:
        return None if self.dominant is None else self.dominant.value

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup("orth", [self.A]), ParamGroup("main", self.others(self.A))]

    @torch.no_grad()
    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Switch the normalisation on if ρ(T) > 1, so that the next forward pass is normalised.

        With `WORTH_IT` short units or more, the dominant eigenvalue is followed from then on. If
        another eigenvalue overtakes it between decompositions, ρ(Wˢ) exceeds 1 for a few updates:
        see `matrices.dominant`.
        """
        if not self.reads_host_values:
            self.update_on_host()
        else:
            self.pending.copy_(self.switched | ~is_surely_stable(self.T))

    @torch.no_grad()
    def update_on_host(self) -> None:
        self.switched.logical_or_(spectral_radius(self.T, needed=~self.switched) > 1)
        if self.dominant is not None:
            self.dominant.update(self.T, self.switched)

    @torch.no_grad()
    def host_values(self) -> dict[str, Tensor]:
        """Return ρ, its slope and whether it has none, as the next step needs them of T."""
        found = find_radius(self.T, self.switched, self._near())
        return {**found._asdict(), "pending": torch.tensor(False)}

    @torch.no_grad()
    def constraint_report(self) -> dict[str, Tensor]:
        """Return the long block's error, the short block's radius and norm, the switch, the events.

        T is not normal: hˢ can grow for some steps where `short_norm`, its 2-norm, exceeds 1.
        """
        W_S = self.short_block()
        norm = singular_values(W_S).amax() if self.config.short else W_S.new_zeros(())
        return {
            "orthogonality_error": orthogonality_error(self.long_block()),
            "short_radius": spectral_radius(W_S),
            "short_norm": norm,
            "switched": self.switched.to(W_S.dtype),
            "fallback_events": self.fallback_events.to(W_S.dtype),
        }

"""Networks of layers whose recurrences are linear in the state, so that steps need not wait.

    u⁰_t = U x_t + b,   u^l = layer_l(u^{l-1}),   y_t = V finish(u^L_t) + c

Each layer maps w numbers of a step to w, and has n hidden units. What a layer is,
`models/lru.py` and `models/minimal.py` say. Letters besides those of `models/base.py`: w width, L
layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import sqrt
from typing import Literal, Protocol, Self, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from eigensweep.models.base import Shapes, State
from eigensweep.models.matrices.initial import Initial, draw, uniform
from eigensweep.models.network import Network, NetworkConfig
from eigensweep.models.recurrence import scan, scan_reference
from eigensweep.models.recurrence.reference import project


class Scan(Protocol):
    """Returns h_t = a_t ⊙ h_{t-1} + b_t for all t, as `scan_reference.scan` does."""

    def __call__(self, a: Tensor, b: Tensor, h0: Tensor, *, paired: bool = False) -> Tensor:
        """Return the states of all steps."""


NORM_EPS = 1e-5


class LayeredConfig(NetworkConfig):
    """What a search may vary on every network of layers."""

    encoder_init: Initial = Field("fan_in_uniform", description="Initial U")
    readout_init: Initial = Field("fan_in_uniform", description="Initial V")
    layers: int = Field(3, ge=1, le=64, description="Number L of layers")
    width: int | None = Field(
        None, ge=1, le=65_536, description="Numbers w between two layers; default: n"
    )
    pooling: Literal["last", "mean"] = Field(
        "last",
        description="What is read out where the task asks for one answer. `last`: the last step; "
        "`mean`: the mean over all steps",
    )

    def resolve(self, shapes: Shapes) -> Self:
        if self.pooling == "mean" and shapes.readout == "all":
            raise ValueError(
                f"{self.name}: 'pooling: mean' gives one answer, and this task asks for one at "
                "every step; use 'pooling: last'"
            )
        return super().resolve(shapes)

    def at_size(self, hidden_size: int) -> Self:
        config = super().at_size(hidden_size)
        return config if self.width else config.model_copy(update={"width": hidden_size})

    @property
    def w(self) -> int:
        """The width of a resolved config."""
        assert self.width is not None
        return self.width

    @property
    def encoder_rows(self) -> int:
        return self.w

    @property
    def readout_columns(self) -> int:
        return self.w

    @property
    def trains_encoder(self) -> bool:
        return True

    @property
    def layer_parameters(self) -> int:
        """The count of one layer."""
        raise NotImplementedError

    @property
    def layer_numbers(self) -> int:
        """Numbers that a training step keeps of each time step for one layer, about."""
        raise NotImplementedError

    @property
    def saved_numbers(self) -> int:
        return self.w + (self.layers + 1) * self.layer_numbers  # one more while it is computed

    def free_parameters(self, shapes: Shapes) -> int:
        encoder = self.encoder_parameters(shapes) + self.w
        return encoder + self.layers * self.layer_parameters + self.readout_parameters(shapes)


class Layer(nn.Module, ABC):
    """One layer. Between two parts of a sequence it carries a few tensors, the batch first."""

    carried: int
    """Number of tensors that it carries."""

    @abstractmethod
    def initial_state(self, u: Tensor) -> tuple[Tensor, ...]:
        """Return what it carries before the first step of u, (τ, B, w): zeros."""

    @abstractmethod
    def forward(
        self, u: Tensor, carried: tuple[Tensor, ...], scan: Scan
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Return the layer's output, (τ, B, w), h at every step, and what it carries on."""

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """Return W of the layer, (n, n), a diagonal matrix."""


class LayeredNetwork(Network):
    """Encoder, layers and readout. Its state is what all layers carry, one after another.

    What `states` and `recurrent_matrix` return is the last layer's.
    """

    config: LayeredConfig

    def __init__(self, config: LayeredConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.b = nn.Parameter(torch.zeros(self.config.w))
        self.layers = nn.ModuleList(self.make_layer() for _ in range(self.config.layers))

    @abstractmethod
    def make_layer(self) -> Layer:
        """Return a new layer."""

    def finish(self, u: Tensor) -> Tensor:
        """Return what V reads of the last layer's output, (..., w). Default: the output."""
        return u

    def recurrent_matrix(self) -> Tensor:
        return self._each()[-1].recurrent_matrix()

    def _each(self) -> list[Layer]:
        return cast("list[Layer]", list(self.layers))

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        u, _, carried, before = self._run(x, state, scan.scan)
        if self.shapes.readout == "all":
            return self._read_out(u), carried
        if self.config.pooling == "last":
            return self._read_out(u[-1]), carried
        total, steps = before or (u.new_zeros(u.shape[1:]), u.new_zeros(u.shape[1], 1))
        total, steps = total + u.sum(0), steps + len(u)
        return self._read_out(total / steps), (*carried, total, steps)

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return self._run(x, state, scan_reference.scan)[1]

    def _read_out(self, u: Tensor) -> Tensor:
        return linear(self.finish(u), self.V, self.c)

    def _run(
        self, x: Tensor, state: State | None, scan: Scan
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the last layer's output and states, what all carry on, and what pooling had."""
        u = project(x, self.input_matrix(), self.b)
        before: tuple[Tensor, ...] = ()
        if state is None:
            before = tuple(part for layer in self._each() for part in layer.initial_state(u))
        else:
            assert isinstance(state, tuple)
            before = state
        after: list[Tensor] = []
        H = u
        for layer in self._each():
            mine, before = before[: layer.carried], before[layer.carried :]
            u, H, carried = layer(u, mine, scan)
            after += carried
        return u, H, tuple(after), before


def bias(size: int, columns: int) -> nn.Parameter:
    """Return a bias that stands beside a matrix with so many columns, uniform in ±1/√columns."""
    return nn.Parameter(uniform(size, 1, 1 / sqrt(columns))[:, 0].contiguous())


def matrix(rows: int, columns: int) -> nn.Parameter:
    """Return a new matrix, uniform in ±1/√columns."""
    return nn.Parameter(draw(rows, columns, "fan_in_uniform"))


def rms_norm(u: Tensor, scale: Tensor) -> Tensor:
    """Return u / √(mean of u² + 1e-5) ⊙ scale, the mean over the last axis.

    >>> rms_norm(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 2.0]))
    tensor([0.8485, 2.2627])
    """
    return u * (u.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt() * scale

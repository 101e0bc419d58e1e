"""Networks that solve copying and adding by construction, without training.

Source: Henaff, Szlam & LeCun, "Recurrent Orthogonal Networks and Long-Memory Tasks", ICML 2016,
section 3. Both are LT-RNNs with fixed weights.

Departure: the constants of the copying solution are lost in the text. `exact` decodes every step
right as long as noise stays below ½; `positive` has more room at the answers, and takes the
delimiter for a symbol.
"""

from __future__ import annotations

from math import pi
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear, normalize

from eigensweep.models.base import Model, ModelConfig, Shapes, State
from eigensweep.models.recurrence.reference import recurrent_states
from eigensweep.models.recurrence.ungated import recur


class Constructed(Model):
    """h_t = U x_t + W h_{t-1}, y_t = V h_t. The matrices are buffers; nothing is trained."""

    U: Tensor
    W: Tensor
    V: Tensor

    def __init__(self, config: ModelConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        for name, matrix in zip("UWV", self.construct(), strict=True):
            self.register_buffer(name, matrix)

    def construct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return U, W and V."""
        raise NotImplementedError

    def drive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return an input and its matrix whose product is what enters the state."""
        return x, self.U

    def recurrent_matrix(self) -> Tensor:
        return self.W

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        (x, U), h0 = self.drive(x), self._start(x, state)
        b, c = U.new_zeros(len(self.W)), U.new_zeros(len(self.V))
        readout = self.shapes.readout
        return recur(x, U, self.W, b, self.V, c, activation="identity", readout=readout, h0=h0)

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        (x, U), h0 = self.drive(x), self._start(x, state)
        b = U.new_zeros(len(self.W))
        return recurrent_states(x, U, self.W, b, activation="identity", h0=h0)

    def _start(self, x: Tensor, state: State | None) -> Tensor:
        if state is None:
            return self.W.new_zeros(x.shape[1], self.hidden_size)
        assert isinstance(state, Tensor)
        return state


class ConstructedCopyingConfig(ModelConfig):
    """What a search may vary. `delay` and `symbols` are those of the task."""

    lane_fields = frozenset({"delay", "symbols", "variant"})

    name: Literal["constructed_copying"] = "constructed_copying"
    hidden_size: int | None = Field(
        None, ge=3, le=65_537, description="Number n = 2 d + 1: d rotating planes and a counter"
    )
    parameters: None = Field(None, description="Always null, because nothing is trained")
    delay: int = Field(
        2_000, ge=1, le=1_000_000, description="Steps to wait, the same as the task's `delay`"
    )
    symbols: int = Field(
        10, ge=1, le=1_000, description="Symbols to recall, the same as the task's `symbols`"
    )
    variant: Literal["exact", "positive"] = Field(
        "exact",
        description="`exact`: every step is answered right if noise stays below 1/2; `positive`: "
        "the recalled symbols stand more noise, but the delimiter is answered as a "
        "symbol",
    )

    def resolve(self, shapes: Shapes) -> Self:
        config = super().resolve(shapes)
        if shapes.input_kind != "symbols" or shapes.input_size != shapes.output_size + 1:
            raise ValueError(
                "constructed_copying solves copying: blank, symbols and a delimiter in, blank and "
                "symbols out; this task's input is "
                f"{shapes.input_size} {shapes.input_kind} for {shapes.output_size} outputs"
            )
        n = config.hidden_size
        assert n is not None
        if n % 2 == 0:
            raise ValueError(
                f"constructed_copying: 'hidden_size' is {n}; allowed are odd sizes, such as {n + 1}"
            )
        return config

    def free_parameters(self, shapes: Shapes) -> int:
        return 0


class ConstructedCopying(Constructed):
    """Each symbol adds a random unit vector to a clock of d hands, whose period is its answer's.

    The hand of plane j turns by 2π l_j / N a step, with N = `delay` + `symbols` and l_j a random
    integer: after N steps it is back, and the vector that was added then is seen again. One more
    unit counts the symbols, so that blanks are answered until the delimiter.
    """

    Config = ConstructedCopyingConfig
    config: ConstructedCopyingConfig

    def construct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return U, W and V, for inputs blank, symbols 1 to K, delimiter."""
        K, S = self.shapes.output_size - 1, self.config.symbols
        planes, period = self.hidden_size // 2, self.config.delay + S
        angles = 2 * pi / period * torch.randint(period, (planes,)).double()
        W, i = torch.eye(2 * planes + 1), 2 * torch.arange(planes)
        W[i, i] = W[i + 1, i + 1] = angles.cos().float()
        W[i + 1, i] = angles.sin().float()
        W[i, i + 1] = -W[i + 1, i]
        u = normalize(torch.randn(K, 2 * planes))
        U, V = torch.zeros(2 * planes + 1, K + 2), torch.zeros(K + 1, 2 * planes + 1)
        U[:-1, 1:-1], V[1:, :-1] = u.T, u
        U[-1, 1:-1] = -1
        if self.config.variant == "exact":
            U[-1, -1], V[0, -1], V[1:, -1] = S - 0.25, -2, 0
        else:
            U[-1, -1], V[0, -1], V[1:, -1] = 2 * S, -3, -1
        return U, W, V


class ConstructedAddingConfig(ModelConfig):
    """There is nothing to vary."""

    name: Literal["constructed_adding"] = "constructed_adding"
    hidden_size: Literal[1] = Field(1, description="Number n of hidden units")
    parameters: None = Field(None, description="Always null, because nothing is trained")

    def resolve(self, shapes: Shapes) -> Self:
        if (shapes.input_kind, shapes.input_size, shapes.output_size) != ("values", 2, 1):
            raise ValueError(
                "constructed_adding solves adding: a value and its marker in, their sum out; this "
                f"task's input is {shapes.input_size} {shapes.input_kind} for "
                f"{shapes.output_size} outputs"
            )
        return super().resolve(shapes)

    def free_parameters(self, shapes: Shapes) -> int:
        return 0


class ConstructedAdding(Constructed):
    """h_t = ReLU(value + marker - 1) + h_{t-1}: with values up to 1, the sum of the marked ones."""

    Config = ConstructedAddingConfig

    def construct(self) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ones(1, 2), torch.ones(1, 1), torch.ones(1, 1)

    def drive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.relu(linear(x, self.U) - 1), torch.ones_like(self.W)

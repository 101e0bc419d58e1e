"""What all networks share: encoder, linear readout, and counts that are given as shares.

With `encoder: embedding` a symbol is first looked up in a table E of width e, and U x_t becomes
U Eᵀ x_t. In h_t = f(U x_t + W h_{t-1} + b) with e = n, U is the identity and not trained: the
embedding enters the state as it is.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Model, ModelConfig, Shapes, State
from eigensweep.models.matrices.initial import Initial, draw
from eigensweep.models.recurrence.reference import recurrent_states
from eigensweep.models.recurrence.steps import Activation
from eigensweep.models.recurrence.ungated import recur


class NetworkConfig(ModelConfig):
    """What a search may vary on every network: its encoder, and how encoder and readout start."""

    saved_values = 2
    lane_fields = frozenset(
        {
            "embedding_init",
            "encoder_init",
            "recurrent_init",
            "readout_init",
            "readout_bias_init",
        }
    )

    encoder: Literal["direct", "embedding"] = Field(
        "direct",
        description="`direct`: U multiplies the input; `embedding`: a symbol is looked up in an "
        "embedding first, and U multiplies its vector",
    )
    embedding_size: int | None = Field(
        None, ge=1, le=65_536, description="Width e of the embedding; default: n"
    )
    embedding_init: Initial = Field("glorot_uniform", description="Initial embedding")
    encoder_init: Initial = Field("small_uniform", description="Initial U")
    readout_init: Initial = Field("glorot_uniform", description="Initial V")
    readout_bias_init: Literal["zeros", "hundredth", "fan_in_uniform", "truncated_normal"] = Field(
        "zeros",
        description="Initial c. `zeros`: 0; `hundredth`: 0.01 in each entry; `fan_in_uniform` and"
        " `truncated_normal`: drawn as for V, with n columns",
    )

    def resolve(self, shapes: Shapes) -> Self:
        if self.encoder == "embedding" and shapes.input_kind != "symbols":
            raise ValueError(
                f"{self.name}: 'encoder: embedding' looks symbols up, and this task's input is "
                "values; use 'encoder: direct'"
            )
        if self.encoder == "direct" and self.embedding_size is not None:
            raise ValueError(
                f"{self.name}: 'embedding_size' is given and 'encoder' is direct; "
                "set 'encoder: embedding' or leave 'embedding_size' out"
            )
        return super().resolve(shapes)

    def at_size(self, hidden_size: int) -> Self:
        config = super().at_size(hidden_size)
        if self.encoder == "embedding" and self.embedding_size is None:
            config = config.model_copy(update={"embedding_size": hidden_size})
        return config

    @property
    def n(self) -> int:
        """The hidden size of a resolved config."""
        assert self.hidden_size is not None
        return self.hidden_size

    @property
    def encoder_rows(self) -> int:
        """Rows of U."""
        return self.n

    @property
    def readout_columns(self) -> int:
        """Columns of V."""
        return self.n

    @property
    def trains_encoder(self) -> bool:
        """Whether U is trained; else it is the identity behind an embedding of width n."""
        return self.embedding_size != self.n

    @property
    def trains_readout_bias(self) -> bool:
        """Whether c is trained; else it is zero."""
        return True

    def encoder_parameters(self, shapes: Shapes) -> int:
        """Return the count of U, where it is trained, and of the embedding, where there is one."""
        width = self.embedding_size or shapes.input_size
        table = shapes.input_size * (self.embedding_size or 0)
        return table + (self.encoder_rows * width if self.trains_encoder else 0)

    def readout_parameters(self, shapes: Shapes) -> int:
        """Return the count of V, and of c where it is trained."""
        return (self.readout_columns + self.trains_readout_bias) * shapes.output_size


class Network(Model):
    """A model with an encoder, perhaps through an embedding, and the readout V h + c."""

    config: NetworkConfig
    c: Tensor

    def __init__(self, config: NetworkConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        config = self.config
        width = shapes.input_size
        self.register_parameter("embedding", None)
        if config.embedding_size is not None:
            width = config.embedding_size
            self.embedding = nn.Parameter(draw(shapes.input_size, width, config.embedding_init))
        self.register_parameter("U", None)
        if config.trains_encoder:
            self.U = nn.Parameter(self.initial_encoder(width))
        self.V = nn.Parameter(self.initial_readout())
        if config.trains_readout_bias:
            self.c = nn.Parameter(self._initial_readout_bias())
        else:
            self.register_buffer("c", torch.zeros(shapes.output_size))

    def initial_encoder(self, width: int) -> Tensor:
        """Draw U, with `width` columns."""
        return draw(self.config.encoder_rows, width, self.config.encoder_init)

    def initial_readout(self) -> Tensor:
        """Draw V."""
        config = self.config
        return draw(self.shapes.output_size, config.readout_columns, config.readout_init)

    def _initial_readout_bias(self) -> Tensor:
        p, initial = self.shapes.output_size, self.config.readout_bias_init
        if initial == "zeros" or initial == "hundredth":
            return torch.full((p,), 0.0 if initial == "zeros" else 0.01)
        return draw(p, self.hidden_size, initial)[:, 0].contiguous()

    def input_matrix(self) -> Tensor:
        """Return the matrix that meets x_t, (n, m): U, or U Eᵀ, or Eᵀ."""
        if self.embedding is None:
            return self.U
        table = self.embedding.mT
        return table if self.U is None else self.U @ table

    def initial_state(self, x: Tensor) -> Tensor:
        """Return h_0 = 0, (B, n)."""
        return self.V.new_zeros(x.shape[1], self.hidden_size)

    def restart(self, state: State, rows: Tensor) -> State:
        if not isinstance(state, Tensor):
            return super().restart(state, rows)
        chosen = rows.to(state.device).unsqueeze(-1)
        return torch.where(chosen, self.initial_state(chosen.mT), state)

    def _start(self, x: Tensor, state: State | None) -> Tensor:
        if state is None:
            return self.initial_state(x)
        assert isinstance(state, Tensor)
        return state


class PreparedNetwork(Network):
    """A network whose `forward` is what `prepare` returns. The model defines `prepare`."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        return self.prepare()(x, state)

    @abstractmethod
    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        """Return a function of (x, state) that does what `forward` does."""


class RecurrentModel(PreparedNetwork):
    """h_t = f(U x_t + W h_{t-1} + b). The model defines W and f."""

    activation: Activation

    def __init__(self, config: NetworkConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        self.b = nn.Parameter(self.initial_bias())

    def initial_bias(self) -> Tensor:
        """Draw b, (n,)."""
        return torch.zeros(self.hidden_size)

    def encode_input(self, x: Tensor) -> Tensor:
        """Return the input that the input matrix multiplies. Default: x itself."""
        return x

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U, W = self.input_matrix(), self.recurrent_matrix()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            return recur(
                self.encode_input(x),
                U,
                W,
                self.b,
                self.V,
                self.c,
                activation=self.activation,
                readout=self.shapes.readout,
                h0=self._start(x, state),
            )

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        return recurrent_states(
            self.encode_input(x),
            self.input_matrix(),
            self.recurrent_matrix(),
            self.b,
            activation=self.activation,
            h0=self._start(x, state),
        )


def percent(fraction: float) -> int:
    """Return a fraction as integer percent; counts are taken from these, in exact arithmetic.

    >>> percent(0.29), percent(0.7)
    (29, 70)
    """
    return int(100 * fraction + 0.5)


def negative_count(fraction: float, size: int) -> int:
    """Return floor(fraction · size + ½): how many of `size` entries are -1.

    >>> negative_count(0.1, 425), negative_count(0.3, 96)
    (43, 29)
    """
    return (2 * percent(fraction) * size + 100) // 200


def even_count(fraction: float, size: int) -> int:
    """Return the even integer nearest to fraction · size, the lower one of two.

    >>> even_count(0.1, 192), even_count(0.7, 1030)
    (20, 720)
    """
    return -2 * ((100 - percent(fraction) * size) // 200)


def require_one(config: ModelConfig, first: str, second: str) -> None:
    """Raise ValueError unless exactly one of two fields is given."""
    given = [name for name in (first, second) if getattr(config, name) is not None]
    if len(given) != 1:
        which = "both are" if given else "neither is"
        raise ValueError(
            f"{config.name} takes exactly one of '{first}' and '{second}'; {which} given"
        )


def require_at_most(
    config: ModelConfig, field: str, limit: int, whole: str, least: int = 0
) -> None:
    """Raise ValueError if a count exceeds the size it is a part of."""
    value = getattr(config, field)
    if value > limit:
        raise ValueError(
            f"{config.name}: '{field}' is {value}; allowed are {least} to {limit}, {whole}"
        )

"""What coRNN and LEM share: states y and z that follow an ODE in steps of Δt. y is read out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Shapes, State
from eigensweep.models.matrices.initial import Initial, uniform
from eigensweep.models.network import NetworkConfig, PreparedNetwork


class ODEConfig(NetworkConfig):
    """What a search may vary on every network that follows an ODE."""

    rows: ClassVar[int]
    """Rows of U and entries of b, as multiples of n."""
    products: ClassVar[int]
    """Recurrent matrices, each (n, n)."""
    encoder_init: ClassVar[None] = None  # type: ignore[misc]  # not a field: see `ODENetwork.limit`

    readout_init: Initial = Field("fan_in_uniform", description="Initial V")
    readout_bias_init: Literal["zeros", "hundredth", "fan_in_uniform", "truncated_normal"] = Field(
        "fan_in_uniform",
        description="Initial c. `zeros`: 0; `hundredth`: 0.01 in each entry; `fan_in_uniform` and"
        " `truncated_normal`: drawn as for V, with n columns",
    )

    @property
    def encoder_rows(self) -> int:
        return self.rows * self.n

    @property
    def trains_encoder(self) -> bool:
        return True

    def free_parameters(self, shapes: Shapes) -> int:
        recurrent = self.products * self.n**2 + self.encoder_rows
        return recurrent + self.encoder_parameters(shapes) + self.readout_parameters(shapes)


class ODENetwork(PreparedNetwork):
    """A network with states (y, z), whose U, R and b start uniform in ±`limit`."""

    config: ODEConfig
    cell: Callable[..., tuple[Tensor, tuple[Tensor, Tensor]]]
    """The fast recurrence, and below the readable one."""
    cell_states: Callable[..., tuple[Tensor, Tensor]]

    def __init__(self, config: ODEConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n, config = self.hidden_size, self.config
        self.R = nn.Parameter(uniform(config.products * n, n, self.limit))
        self.b = nn.Parameter(uniform(config.encoder_rows, 1, self.limit)[:, 0])

    @property
    @abstractmethod
    def limit(self) -> float:
        """The largest modulus of an initial entry of U, R and b."""

    def initial_encoder(self, width: int) -> Tensor:
        return uniform(self.config.encoder_rows, width, self.limit)

    def recurrent_matrix(self) -> Tensor:
        """Return R, (products · n, n): the matrices of the states, one above the other."""
        return self.R

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        U = self.input_matrix()

        def run(x: Tensor, state: State | None) -> tuple[Tensor, State]:
            given = self._numbers() | self._states_before(x, state)
            readout = self.shapes.readout
            return self.cell(x, U, self.R, self.b, self.V, self.c, readout=readout, **given)

        return run

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return y at every step, (τ, B, n), computed by the readable reference."""
        given = self._numbers() | self._states_before(x, state)
        Y, _ = self.cell_states(x, self.input_matrix(), self.R, self.b, **given)
        return Y

    def _numbers(self) -> dict[str, Any]:
        """Return Δt and the other constants by the names of their fields."""
        return {field: self.scalar(field) for field in sorted(self.config.scalars)}

    def _states_before(self, x: Tensor, state: State | None) -> dict[str, Tensor]:
        y0, z0 = (self.initial_state(x), self.initial_state(x)) if state is None else state
        return {"y0": y0, "z0": z0}

"""LT-RNN: a linear transition, orthogonal or the identity at the start and free afterwards.

Source: Henaff, Szlam & LeCun, "Recurrent Orthogonal Networks and Long-Memory Tasks", ICML 2016,
sections 2 to 4.

Departure: the formulas are reconstructed from the text. Values pass ReLU on their way in, symbols
do not; the penalty is one step of gradient descent on the mean of |WᵀW x - x|² over random unit
vectors x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import linear

from eigensweep.common.autograd import Function
from eigensweep.models.base import Shapes, State
from eigensweep.models.gradient_factor import multiply_gradient
from eigensweep.models.matrices.initial import Initial, draw
from eigensweep.models.matrices.orthogonal import nearest_orthogonal
from eigensweep.models.network import Network, NetworkConfig
from eigensweep.models.recurrence.reference import recurrent_states
from eigensweep.models.recurrence.ungated import recur


class LTRNNConfig(NetworkConfig):
    """What a search may vary. With pooling n is even."""

    scalars = frozenset({"activation_clip", "orthogonality_penalty"})
    switches = frozenset({"orthogonality_penalty"})

    name: Literal["lt_rnn"] = "lt_rnn"
    recurrent_init: Literal["orthogonal", "identity"] = Field(
        "orthogonal",
        description="Initial W. `orthogonal`: random orthogonal (LT-ORNN); `identity`: the "
        "identity (LT-IRNN)",
    )
    pooling: bool = Field(
        False, description="Whether the lengths of pairs of units are also read out"
    )
    activation_clip: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="Largest length of the state; a longer state is scaled down to it; default: "
        "no limit",
    )
    orthogonality_penalty: float = Field(
        0.0,
        ge=0,
        le=1e3,
        description="Size of a step towards WᵀW = I after each update, in learning rates",
    )
    orthogonality_vectors: int = Field(
        50, ge=1, le=65_536, description="Random unit vectors from which such a step is computed"
    )
    scale_gradient: bool = Field(
        False,
        description="Whether the gradient with respect to the states is divided by the number of "
        "steps",
    )
    readout_bias: bool = Field(
        False, description="Whether c is trained, starting from zero; otherwise it is zero"
    )
    readout_bias_init: ClassVar[Literal["zeros"]] = "zeros"  # type: ignore[misc]  # not a field
    encoder_init: Initial = Field("glorot_uniform", description="Initial U")

    @property
    def size_step(self) -> int:
        return 2 if self.pooling else 1

    @property
    def trains_readout_bias(self) -> bool:
        return self.readout_bias

    def free_parameters(self, shapes: Shapes) -> int:
        bias = self.n if shapes.input_kind == "values" else 0
        pooled = shapes.output_size * (self.n // 2) if self.pooling else 0
        encoder, readout = self.encoder_parameters(shapes), self.readout_parameters(shapes)
        return self.n**2 + bias + pooled + encoder + readout


class LTRNN(Network):
    """h_t = ReLU(U x_t + b) + W h_{t-1}, or U x_t + W h_{t-1} for symbols; y_t = V h_t.

    With pooling y_t = V h_t + V₂ pool(h_t), pool(h)_j = sqrt(h_{2j}² + h_{2j+1}²).
    """

    Config = LTRNNConfig
    config: LTRNNConfig
    draws: Tensor
    """Seed of the next random vectors of the penalty."""
    host_inputs = ("draws",)
    vectors: Tensor
    pending: Tensor

    def __init__(self, config: LTRNNConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        config, n = self.config, self.hidden_size
        orthogonal = config.recurrent_init == "orthogonal"
        self.W = nn.Parameter(nearest_orthogonal(torch.randn(n, n)) if orthogonal else torch.eye(n))
        self.register_parameter("b", None)
        if shapes.input_kind == "values":
            self.b = nn.Parameter(torch.zeros(n))
        self.register_parameter("V_2", None)
        if config.pooling:
            self.V_2 = nn.Parameter(draw(shapes.output_size, n // 2, config.readout_init))
        if config.orthogonality_penalty:
            self.register_buffer("draws", torch.randint(2**31, ()))

    def recurrent_matrix(self) -> Tensor:
        return self.W

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return (logits, h).

        A factor on the gradient between each state and the readout is the same factor on the
        gradients of what the states are made of, since back-propagation is linear.
        """
        factor = 1 / len(x) if self.config.scale_gradient else 1.0
        x, U = self._drive(x)
        x, W, h0 = (multiply_gradient(t, factor) for t in (x, self.W, self._start(x, state)))
        U = None if U is None else multiply_gradient(U, factor)
        readout = self.shapes.readout
        how: dict[str, Any] = {**self._activation(W), "h0": h0}
        if self.V_2 is None:
            return recur(x, U, W, V=self.V, c=self.c, readout=readout, **how)
        eye = torch.eye(self.hidden_size, dtype=W.dtype, device=W.device)
        seen, h = recur(x, U, W, V=eye, c=W.new_zeros(len(eye)), readout=readout, **how)
        return linear(seen, self.V, self.c) + linear(pool(seen), self.V_2), h

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        how = self._activation(self.W)
        return recurrent_states(*self._drive(x), self.W, h0=self._start(x, state), **how)

    def _drive(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return an input and its matrix, or None where the input enters the state as it is."""
        if self.b is None:
            return x, self.input_matrix()
        driven = torch.addmm(self.b, x.flatten(0, 1), self.U.mT).relu_()
        return driven.view(*x.shape[:2], self.hidden_size), None

    def _activation(self, W: Tensor) -> dict[str, Any]:
        """Return f and b of the recurrence: what is longer than the limit is clipped."""
        limit = self.scalar("activation_clip")
        if limit is None:
            return {"activation": "identity", "b": W.new_zeros(self.hidden_size)}
        return {"activation": "clipped", "b": W.new_ones(self.hidden_size) * limit}

    @torch.no_grad()
    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Take the penalty's step, with `orthogonality_penalty` times the learning rate."""
        if not self.config.orthogonality_penalty:
            return
        if self.reads_host_values:
            X = self.vectors
            self.pending.fill_(True)
        else:
            X = self._unit_vectors()
        R = self.W.mT @ (self.W @ X) - X
        gradient = 2 / X.shape[-1] * self.W @ (X @ R.mT + R @ X.mT)
        rate = self.scalar("orthogonality_penalty") * learning_rates["main"]
        self.W.sub_(rate * gradient)
        self.draws.add_(1)

    def host_values(self) -> dict[str, Tensor]:
        """Return the random vectors of the next step of the penalty."""
        if not self.config.orthogonality_penalty:
            return {}
        return {"vectors": self._unit_vectors(), "pending": torch.tensor(False)}

    def _unit_vectors(self) -> Tensor:
        count = self.config.orthogonality_vectors
        return _unit_vectors(self.draws, self.hidden_size, count, self.W.dtype)


def pool(h: Tensor) -> Tensor:
    """Return the length of each pair of units, (..., n / 2); its slope at zero is zero.

    >>> pool(torch.tensor([3.0, 4.0, 0.0, -2.0])).tolist()
    [5.0, 2.0]
    """
    return (h[..., ::2].square() + h[..., 1::2].square() + 1e-12).sqrt()


def _unit_vectors(seed: Tensor, n: int, count: int, dtype: torch.dtype) -> Tensor:
    return _UnitVectors.apply(seed, n, count, dtype)  # type: ignore[no-untyped-call]


class _UnitVectors(Function):
    """Random unit vectors as columns, (..., n, count), one draw for each seed (...)."""

    @staticmethod
    def forward(seed: Tensor, n: int, count: int, dtype: torch.dtype) -> Tensor:
        generator = torch.Generator()
        draws = [
            torch.randn(n, count, generator=generator.manual_seed(s))
            for s in seed.flatten().tolist()
        ]
        X = torch.stack(draws).reshape(*seed.shape, n, count)
        return (X / X.norm(dim=-2, keepdim=True)).to(seed.device, dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], seed: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        assert in_dims[0] == 0
        return _unit_vectors(seed, *rest), 0

"""The contract that every model keeps, and what a search may set on every model.

Letters used in shapes everywhere below this package: τ sequence length, B batch size, m input size,
n hidden size (ENRNN: q long and s short units, n = q + s), p output size. Sequences are time first,
matrices are in column convention: z_t = U x_t + W h_{t-1}.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

State = Tensor | tuple[Tensor, ...]
"""What a model carries from one piece of a sequence to the next; opaque to everybody else."""


class Shapes(Protocol):
    """What a model must know of a task: four plain attributes, which a task's `shapes` has."""

    @property
    def input_size(self) -> int:
        """Number m of input symbols, or of input features."""

    @property
    def input_kind(self) -> Literal["symbols", "values"]:
        """`symbols`: int64 (τ, B) indices; `values`: float (τ, B, m)."""

    @property
    def output_size(self) -> int:
        """Number p of outputs."""

    @property
    def readout(self) -> Literal["all", "last"]:
        """Whether every step is read out, or the last one only."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share a learning rate: `orth` takes `lr_orth`, all other groups `lr`."""

    name: str
    params: list[nn.Parameter]
    options: dict[str, Any] = field(default_factory=dict)
    rule: Callable[[list[dict[str, Any]]], Optimizer] | None = None
    """Makes the optimizer that the model itself asks for, of groups as torch has them; by default
    the trial's optimizer updates the group."""


class ModelConfig(BaseModel):
    """What a search may vary on every model. Rules that join fields are checked by `resolve`."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    initial_only: ClassVar[frozenset[str]] = frozenset()
    """Fields that set initial values and buffers only: stacked networks may differ in them."""

    name: str
    hidden_size: int | None = Field(
        None, ge=1, le=65_536, description="Number n of hidden units; or give `parameters`"
    )
    parameters: int | None = Field(
        None,
        ge=1,
        le=10**10,
        description="Budget of free parameters; the largest n within it is taken. Or give "
        "`hidden_size`",
    )

    def resolve(self, shapes: Shapes) -> Self:
        """Return the config with every size and count absolute, ready to build and to hash.

        Raises:
            ValueError: if fields contradict one another, with what is allowed.
        """
        if (self.hidden_size is None) == (self.parameters is None):
            given = "both" if self.hidden_size is not None else "neither"
            raise ValueError(
                f"{self.name} takes exactly one of 'hidden_size' and 'parameters'; {given} is given"
            )
        if self.parameters is None:
            n, step = self.hidden_size, self.size_step
            assert n is not None
            if n % step:
                raise ValueError(
                    f"{self.name}: 'hidden_size' is {n}; allowed are multiples of {step}, "
                    f"such as {n + step - n % step}"
                )
            return self.at_size(n)
        return self.at_size(self._largest_size(shapes, self.parameters))

    def at_size(self, hidden_size: int) -> Self:
        """Return the config at n = `hidden_size`, fractions turned into counts, budget dropped."""
        return self.model_copy(update={"hidden_size": hidden_size, "parameters": None})

    def free_parameters(self, shapes: Shapes) -> int:
        """Return the degrees of freedom of a resolved config: the count that the papers print."""
        raise NotImplementedError

    @property
    def smallest_size(self) -> int:
        """The smallest n that the given counts allow, a multiple of `size_step`."""
        return self.size_step

    @property
    def size_step(self) -> int:
        """What n is a multiple of."""
        return 1

    def _largest_size(self, shapes: Shapes, budget: int) -> int:
        def fits(size: int) -> bool:
            return self.at_size(size).free_parameters(shapes) <= budget

        low = self.smallest_size
        if not fits(low):
            needed = self.at_size(low).free_parameters(shapes)
            raise ValueError(
                f"{self.name} with {low} hidden units has {needed} free parameters here, "
                f"more than the budget 'parameters': {budget}"
            )
        high = 2 * low
        while fits(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        # Where a fraction is rounded the count can dip, so the next few sizes are looked at too.
        step = self.size_step
        return max(size for size in range(low - low % step, low + 8, step) if fits(size))


class Model(nn.Module, ABC):
    """A recurrent network: encoder, recurrence and readout, built from its config and shapes.

    Written for one network. It is stacked from outside by `torch.vmap` (`models/stack.py`), so no
    Python branch in `forward`, `recurrent_matrix`, `penalty` or `after_update` may depend on a
    tensor's value: flags are buffers, choices are `torch.where`, and a custom Function has a `vmap`
    rule. Whatever a rerun needs and is not a parameter is a registered buffer. The loss belongs to
    the task.
    """

    Config: ClassVar[type[ModelConfig]]
    result_version: ClassVar[int] = 1
    """Raised when a change makes the same config give other results; enters every trial's hash."""

    def __init__(self, config: ModelConfig, shapes: Shapes) -> None:
        super().__init__()
        self.config = config.resolve(shapes)
        self.shapes = shapes
        assert self.config.hidden_size is not None
        self.hidden_size: int = self.config.hidden_size

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return (logits, state): logits (τ, B, p), or (B, p) if only the last step is read out.

        x is int64 (τ, B) or float (τ, B, m); `state=None` is the model's initial state.
        """

    @abstractmethod
    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return h at every step, (τ, B, n), by the readable reference: any derivative works."""

    def restart(self, state: State, rows: Tensor) -> State:
        """Return `state` with the initial one in `rows`, (B,) of booleans. Default: zero there."""

        def reset(part: Tensor) -> Tensor:
            chosen = rows.to(part.device).reshape(-1, *[1] * (part.dim() - 1))
            return torch.where(chosen, torch.zeros_like(part), part)

        return tuple(map(reset, state)) if isinstance(state, tuple) else reset(state)

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """Return W, (n, n), from the free parameters; a value, computed anew at each call."""

    def state_blocks(self) -> dict[str, slice]:
        """Return the named parts of the state, in order, as slices of n. Default: one part."""
        return {"state": slice(0, self.hidden_size)}

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        """Return `forward` with W computed once, for the many calls of an evaluation."""
        return self.forward

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup("main", list(self.parameters()))]

    def others(self, *taken: nn.Parameter) -> list[nn.Parameter]:
        """Return the model's parameters without `taken`, in order."""
        ids = {id(p) for p in taken}
        return [p for p in self.parameters() if id(p) not in ids]

    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Run what follows an optimizer step, given each group's learning rate: here nothing."""

    def penalty(self) -> Tensor:
        """Return the model's own regularisation, a scalar added to the loss. Default: zero."""
        anything = next(chain(self.parameters(), self.buffers()))
        return torch.zeros((), device=anything.device)

    def constraint_report(self) -> dict[str, Tensor]:
        """Return scalars that show the model's constraint, such as max|WᵀW - I|. Default: none."""
        return {}

    def count_parameters(self, convention: Literal["free", "stored"] = "free") -> int:
        """Return the degrees of freedom (the papers' way), or the entries of trainable tensors."""
        if convention == "free":
            return self.config.free_parameters(self.shapes)
        return sum(p.numel() for p in trainable(self.parameters()))


def trainable(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return those of `params` that take a gradient."""
    return [p for p in params if p.requires_grad]

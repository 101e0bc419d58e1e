"""The contract of a model: what every model is given, must define, and may override.

To add a model, write a subclass of `ModelConfig` with the fields that a search may vary and
`free_parameters`, and a subclass of `Model` with `forward`, `states` and `recurrent_matrix`. Most
models extend `RecurrentModel` (`models/network.py`), which defines the first two.

Letters in shapes, in all of `models`: τ time steps, B sequences in a batch, m inputs, n hidden
units (ENRNN: q long and s short units, n = q + s), p outputs. Time is the first axis. Matrices
multiply columns: z_t = U x_t + W h_{t-1}.

A model runs in the process of a trial, of an analysis, or of a notebook. Nothing here chooses a
device, seeds a generator or writes a log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from eigensweep.common.plain_numbers import PlainNumbers

State = Tensor | tuple[Tensor, ...]
"""What a model carries from one part of a sequence to the next. Only the model itself reads it."""


class Shapes(Protocol):
    """What a model must know about a task. The `shapes` of a task's config has these attributes."""

    @property
    def input_size(self) -> int:
        """Number m: of different symbols, or of values in each time step."""

    @property
    def input_kind(self) -> Literal["symbols", "values"]:
        """Kind of x. `symbols`: int64 (τ, B), each from 0 to m - 1; `values`: float (τ, B, m)."""

    @property
    def output_size(self) -> int:
        """Number p of outputs in a time step."""

    @property
    def readout(self) -> Literal["all", "last"]:
        """Which states are read out: those of all time steps, or the last one only."""


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share a learning rate and an update rule."""

    name: str
    """`orth`: its learning rate is `optimizer.lr_orth`; every other group uses `optimizer.lr`."""
    params: list[nn.Parameter]
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the optimizer for this group alone, such as `weight_decay`."""
    rule: Callable[[list[dict[str, Any]]], Optimizer] | None = None
    """Returns the optimizer of this group, given groups as `torch.optim` takes them, with the
    learning rate and nothing else. None: the trial's optimizer updates the group."""


class ModelConfig(PlainNumbers):
    """The fields that a search may vary on every model.

    A field checks its own value. `resolve` checks rules between fields.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    scalars: ClassVar[frozenset[str]] = frozenset()
    """Fields whose numbers a training step reads, always by `Model.scalar`."""
    switches: ClassVar[frozenset[str]] = frozenset()
    """Those of `scalars` that turn something off where they are 0: with and without it, networks
    are trained by different steps."""
    lane_fields: ClassVar[frozenset[str]] = frozenset()
    """Other fields in which the networks of a stack may differ, too: those that only set initial
    values, buffers, or options of a parameter group."""

    required: ClassVar[tuple[str, ...]] = ("free_parameters",)
    """What each model's config defines."""
    saved_values: ClassVar[int] = 8
    """Numbers of each hidden unit that a training step keeps of each time step, for previews."""

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
        """Return the config with a hidden size in place of a budget, and counts in place of shares.

        A model is built from this form, and its content hash is computed from it.

        Raises:
            ValueError: if fields contradict one another; the message says what is allowed.
        """
        if (self.hidden_size is None) == (self.parameters is None):
            given = "both are" if self.hidden_size is not None else "neither is"
            raise ValueError(
                f"{self.name} takes exactly one of 'hidden_size' and 'parameters'; {given} given"
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
        """Return the config with n = `hidden_size`, no budget, and counts in place of shares."""
        return self.model_copy(update={"hidden_size": hidden_size, "parameters": None})

    def free_parameters(self, shapes: Shapes) -> int:
        """Return the degrees of freedom of a resolved config, as the papers count parameters.

        An orthogonal (n, n) matrix counts n (n - 1) / 2.
        """
        raise NotImplementedError

    @property
    def saved_numbers(self) -> int:
        """Numbers that a training step keeps of each time step, about, for previews."""
        return self.saved_values * (self.hidden_size or 1)

    @property
    def smallest_size(self) -> int:
        """The smallest n that is possible with the given counts; a multiple of `size_step`."""
        return self.size_step

    @property
    def size_step(self) -> int:
        """Every possible n is a multiple of this number."""
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
        # Where a share is rounded, a larger n can have fewer parameters: try the next sizes, too.
        step = self.size_step
        return max(size for size in range(low - low % step, low + 8, step) if fits(size))


class Model(nn.Module, ABC):
    """A recurrent network: encoder, recurrence and readout, built from its config and shapes.

    A model does not choose its loss, optimizer, device or seed, and it does not log.

    - What must be kept for a rerun is a parameter or a registered buffer.
    - `torch.vmap` stacks many networks into one program (`models/stack.py`), and a GPU repeats that
      program as a whole. So no Python branch in `forward`, `recurrent_matrix`, `penalty` or
      `after_update` depends on a tensor's value, and no value is read back to the host: a flag is a
      buffer, a choice is `torch.where`, and a custom Function has a `vmap` rule. On a CPU reading
      costs nothing; a value that is read there may save work, but changes no result.
    - The result of one network does not depend on the values of its neighbours in a stack, not even
      by rounding.
    """

    Config: ClassVar[type[ModelConfig]]
    not_static: ClassVar[str | None] = None
    """Why a GPU cannot repeat this model's training step as a whole. None: it can."""
    is_random: ClassVar[bool] = False
    """Whether `forward` draws random numbers (dropout). Of other packages' models all may."""
    host_inputs: ClassVar[tuple[str, ...]] = ()
    """Parameters and buffers that `update_on_host` and `host_values` read, by their names."""
    reads_host_values: bool = False
    """Whether a step finds `host_values` in buffers, which a stack fills between steps."""
    result_version: ClassVar[int] = 1
    """Increased when the same config gives other results than before. It is part of the hash."""

    def __init__(self, config: ModelConfig, shapes: Shapes) -> None:
        super().__init__()
        self.config = config.resolve(shapes)
        self.shapes = shapes
        assert self.config.hidden_size is not None
        self.hidden_size: int = self.config.hidden_size

    def scalar(self, field: str) -> Any:
        """Return the number in a field of the config: as it is, or in a stack a 0-dim tensor.

        The name of the field is one of `scalars`.
        """
        tensor = getattr(self, scalar_name(field), None)
        return getattr(self.config, field) if tensor is None else tensor

    @abstractmethod
    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return logits and the last state, from which the next part of a sequence continues.

        x is int64 (τ, B) or float (τ, B, m), as `shapes.input_kind` says. Logits are (τ, B, p), or
        (B, p) where only the last step is read out. Without `state` the sequence starts from the
        model's initial state.
        """

    @abstractmethod
    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        """Return h at every step, (τ, B, n), computed by the readable reference.

        It is slower than `forward` and has derivatives of any order.
        """

    def restart(self, state: State, rows: Tensor) -> State:
        """Return `state` with the initial state in some rows of the batch. Default: zeros.

        `rows` is bool, (B,). The default takes the first axis of each tensor for the rows. What it
        gives is what `forward` begins with without a state.
        """

        def reset(part: Tensor) -> Tensor:
            chosen = rows.to(part.device).reshape(-1, *[1] * (part.dim() - 1))
            return torch.where(chosen, torch.zeros_like(part), part)

        return tuple(map(reset, state)) if isinstance(state, tuple) else reset(state)

    @abstractmethod
    def recurrent_matrix(self) -> Tensor:
        """Return W, (n, n), computed from the parameters at each call.

        W is a value, never an attribute, so it cannot be out of date after an update.
        """

    def state_blocks(self) -> dict[str, slice]:
        """Return the parts of the state by name, as slices of its n units. Default: one part."""
        return {"state": slice(0, self.hidden_size)}

    def prepare(self) -> Callable[[Tensor, State | None], tuple[Tensor, State]]:
        """Return a function that does what `forward` does, with W computed once for all calls.

        An evaluation calls it many times without an update in between.
        """
        return self.forward

    def param_groups(self) -> list[ParamGroup]:
        """Return all parameters, each in one group. Default: one group, `main`."""
        return [ParamGroup("main", list(self.parameters()))]

    def others(self, *taken: nn.Parameter) -> list[nn.Parameter]:
        """Return the model's parameters except `taken`, in order."""
        ids = {id(p) for p in taken}
        return [p for p in self.parameters() if id(p) not in ids]

    def after_update(self, learning_rates: Mapping[str, float]) -> None:
        """Do what must follow each optimizer step, such as moving a base. Default: nothing.

        `learning_rates` holds the current learning rate of each group, by the group's name.
        """

    def update_on_host(self) -> None:
        """Do the part of `after_update` that a GPU cannot do without waiting. Default: nothing.

        `after_update` calls it unless `reads_host_values`.
        """

    def host_values(self) -> dict[str, Tensor]:
        """Return what the next step needs and a GPU cannot compute without waiting. Default: none.

        A stack calls `update_on_host` and this between steps, on copies of `host_inputs` on the
        CPU, and writes the values into buffers of their names. One is `pending`: False. After an
        update `after_update` sets it where the host has something to do.
        """
        return {}

    def penalty(self) -> Tensor:
        """Return the model's own regularisation, a scalar that is added to the loss. Default: 0."""
        anything = next(chain(self.parameters(), self.buffers()), None)
        return torch.zeros((), device=None if anything is None else anything.device)

    def constraint_report(self) -> dict[str, Tensor]:
        """Return scalars that show how well the constraint holds, such as max |WᵀW - I|.

        They become the curves `constraint/<name>`. Default: none.
        """
        return {}

    def count_parameters(self, convention: Literal["free", "stored"] = "free") -> int:
        """Return the number of parameters.

        `free`: degrees of freedom, as the papers count; `stored`: entries of trainable tensors.
        """
        if convention == "free":
            return self.config.free_parameters(self.shapes)
        return sum(p.numel() for p in trainable(self.parameters()))


class AnyMethod(nn.Module):
    """A model whose every method can be reached by `torch.func.functional_call`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str | Callable[..., Any], *arguments: Any) -> Any:
        """Return what a method returns, or a function that is given the model first."""
        if isinstance(method, str):
            return getattr(self.model, method)(*arguments)
        return method(self.model, *arguments)


def scalar_name(field: str) -> str:
    """Return the name of the buffer that holds a field's numbers in a stack."""
    return f"scalar_{field}"


def trainable(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that are trained."""
    return [p for p in params if p.requires_grad]

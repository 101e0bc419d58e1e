"""M networks of equal shape as one program, by `torch.vmap` over the model of one network.

>>> from types import SimpleNamespace
>>> from eigensweep.models import MODELS
>>> shapes = SimpleNamespace(input_size=3, input_kind="symbols", output_size=2, readout="last")
>>> config = MODELS["lstm"].Config(hidden_size=4)
>>> stack = Stack([MODELS["lstm"](config, shapes) for _ in range(5)])
>>> logits, _ = stack(torch.zeros(7, 2, dtype=torch.int64), shared=True)
>>> tuple(logits.shape)
(5, 2, 2)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from eigensweep.models.base import AnyMethod, Model, State, scalar_name
from eigensweep.models.host_work import HostWork


class Stack:
    """Lanes of one program: the parameters and buffers of M models, stacked along a first axis.

    The models given are copied. They are of one class, and their configs differ at most in the
    fields that `lane_fields` and `scalars` of the config name. What the stack's own buffers hold of
    `scalars` is no part of a lane's checkpoint.

    A step of a stack with `host_values` reads no value back to the host. What needs the host, such
    as eigenvalues, is computed by `work_on_host`, which is called after each `after_update`.
    """

    def __init__(self, models: Sequence[Model], *, host_values: bool = False) -> None:
        first, *rest = models
        for model in rest:
            _check_alike(first, model)
        parameters, buffers = stack_module_state([AnyMethod(model) for model in models])
        self.parameters = {
            name: nn.Parameter(p.detach().clone(), p.requires_grad)
            for name, p in parameters.items()
        }
        self.buffers = {name: b.clone() for name, b in buffers.items()}
        self._program = AnyMethod(copy.deepcopy(first))
        self._host = HostWork(first, len(models)) if host_values and first.host_values() else None
        self._program.model.reads_host_values = self._host is not None
        extra = [self.extra_buffers(model) for model in models]
        for name, tensor in extra[0].items():
            self._program.model.register_buffer(name, tensor, persistent=False)
            self.buffers[f"model.{name}"] = torch.stack([each[name] for each in extra])

    def extra_buffers(self, model: Model) -> dict[str, Tensor]:
        """Return what a lane has besides the parameters and buffers of its model, by name.

        These are the numbers of `scalars`, and the host's values for the next step.
        """
        like = next(chain(model.parameters(), model.buffers()))
        values = {} if self._host is None else model.host_values()
        for field in sorted(model.config.scalars):
            number = getattr(model.config, field)
            if number is not None:
                dtype = like.dtype if isinstance(number, float) else None
                values[scalar_name(field)] = torch.tensor(number, dtype=dtype)
        return {name: value.to(like.device) for name, value in values.items()}

    def __len__(self) -> int:
        return len(next(iter((self.parameters or self.buffers).values())))

    def __call__(
        self, x: Tensor, state: State | None = None, *, shared: bool = False
    ) -> tuple[Tensor, State]:
        """Return each lane's (logits, state), lanes first. x has lanes first, unless `shared`."""
        return self.call("forward", x, state, lanes=(None if shared else 0, 0))

    def after_update(self, learning_rates: Mapping[str, float | Tensor]) -> None:
        """Run each lane's `after_update`; a learning rate is one number, or a tensor of M."""
        dims = {name: 0 if isinstance(lr, Tensor) else None for name, lr in learning_rates.items()}
        self.call("after_update", dict(learning_rates), lanes=(dims,))

    @property
    def reads_host_values(self) -> bool:
        """Whether a call finds the host's values in buffers; if not, it computes them itself."""
        return self._program.model.reads_host_values

    def work_on_host(
        self,
        parameters: Mapping[str, Tensor] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Compute, between two steps, what only the host can, and write it into the buffers.

        It reads `model.pending`, and so waits for the device; lanes where that is False cost
        nothing more. `parameters` and `buffers` are used in place of the stack's own.
        """
        if self._host is not None:
            self._host.do(parameters or self.parameters, buffers or self.buffers)

    def call(
        self,
        method: str | Callable[..., Any],
        *arguments: Any,
        lanes: Sequence[Any] = (),
        parameters: Mapping[str, Tensor] | None = None,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """Return what `method` of each lane returns, lanes first; buffers change in their place.

        A method is a name, or a function that is given the model first. `lanes` says for each
        argument where its lanes are, as `in_dims` of `torch.vmap` does. `parameters` and `buffers`
        are used in place of the stack's own.
        """
        parameters = self.parameters if parameters is None else parameters
        buffers = self.buffers if buffers is None else buffers

        def one(parameters: Any, buffers: Any, *arguments: Any) -> Any:
            result = functional_call(self._program, (parameters, buffers), (method, *arguments))
            return () if result is None else result

        dims = (d if a is not None else None for d, a in zip(lanes, arguments, strict=True))
        lanes_of_state = (0 if parameters else None, 0 if buffers else None)
        return torch.vmap(one, (*lanes_of_state, *dims))(parameters, buffers, *arguments)

    def lane(self, index: int) -> dict[str, Tensor]:
        """Return one network's state dict, for `load_state_dict` of a model built alone."""
        everything = {**self.parameters, **self.buffers}
        return {
            name.removeprefix("model."): everything[name][index].detach().clone()
            for name in self._program.state_dict()
        }


def _check_alike(first: Model, other: Model) -> None:
    if type(first) is not type(other):
        raise ValueError(
            f"a stack holds models of one class; these are {type(first).__name__} "
            f"and {type(other).__name__}"
        )
    scalars = first.config.scalars
    may_differ = set(type(first.config).model_fields) & (first.config.lane_fields | scalars)
    one, two = first.config.model_dump(), other.config.model_dump()
    differing = [
        name
        for name in one
        if one[name] != two[name]
        and (name not in may_differ or (name in scalars and None in (one[name], two[name])))
    ]
    if differing:
        raise ValueError(
            f"models in a stack may differ in {', '.join(sorted(may_differ))}; "
            f"these differ in {', '.join(differing)}"
        )
    shapes = [{name: t.shape for name, t in m.state_dict().items()} for m in (first, other)]
    if unlike := sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()}):
        raise ValueError(
            "models in a stack have parameters and buffers of equal shapes; these differ in "
            f"{', '.join(unlike)}"
        )

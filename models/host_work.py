"""What the host computes for the lanes of a program between two steps: eigenvalues, random draws.

A GPU repeats a training step without asking the host. What a model leaves to the host it says in
`host_inputs`, `update_on_host` and `host_values`. A lane that has `pending` set is read, computed
by one thread, on as many cores as PyTorch may use, and written back; the others cost nothing.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor
from torch.func import functional_call

from eigensweep.models.base import AnyMethod, Model


class HostWork:
    """The work of M lanes of one model, whose tensors are stacked along a first axis."""

    def __init__(self, model: Model, lanes: int) -> None:
        held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._read = [name for name in model.host_inputs if name in held]
        updated = [name for name in self._read if name in dict(model.named_buffers())]
        self._written = [*updated, *model.host_values()]
        # Only what is read has values: each lane has a model of its own for one of the threads.
        empty = AnyMethod(copy.deepcopy(model)).to("meta")
        self._models = [copy.deepcopy(empty) for _ in range(lanes)]

    @torch.no_grad()
    def do(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Update the pending lanes of stacked tensors, whose names begin with `model.`."""
        pending = [i for i, due in enumerate(buffers["model.pending"].tolist()) if due]
        if not pending:
            return
        stacked = {name.removeprefix("model."): t for name, t in {**parameters, **buffers}.items()}
        index = torch.tensor(pending).to(buffers["model.pending"].device)
        copies = _transfer([stacked[name][index] for name in self._read], "cpu")
        inputs = [dict(zip(self._read, lane, strict=True)) for lane in zip(*copies, strict=True)]
        models = [self._models[i] for i in pending]
        count = torch.get_num_threads()  # as many cores as this process may use
        run = map if 1 in (count, len(pending)) else _threads(count).map
        made = list(run(_compute, models, inputs))
        rows = [torch.stack([lane[name] for lane in made]) for name in self._written]
        for name, values in zip(self._written, _transfer(rows, index.device), strict=True):
            stacked[name].index_copy_(0, index, values)


def _compute(model: AnyMethod, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the inputs as `update_on_host` leaves them, and `host_values`, of one network."""
    tensors = {f"model.{name}": value.clone() for name, value in inputs.items()}
    functional_call(model, tensors, ("update_on_host",))
    values: dict[str, Tensor] = functional_call(model, tensors, ("host_values",))
    return {name.removeprefix("model."): t for name, t in tensors.items()} | values


def _transfer(tensors: Sequence[Tensor], device: torch.device | str) -> list[Tensor]:
    """Return tensors with equal first axes on another device, copied as one block of bytes."""
    rows = len(tensors[0])
    parts = [t.reshape(rows, t[0].numel()).contiguous().view(torch.uint8) for t in tensors]
    block = torch.cat(parts, 1).to(device)
    split = torch.split(block, [part.shape[1] for part in parts], 1)
    return [
        part.clone(memory_format=torch.contiguous_format).view(t.dtype).reshape(t.shape)
        for part, t in zip(split, tensors, strict=True)
    ]


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "host-work", initializer=_prepare_thread)


def _prepare_thread() -> None:
    """Let a thread compute as a training alone on one core does."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)

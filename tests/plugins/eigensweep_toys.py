"""Toy models that the tests install through the entry point `eigensweep.models`."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from eigensweep.models.base import Model, ModelConfig, Shapes, State


class ToyConfig(ModelConfig):
    """A cell of one matrix."""

    def free_parameters(self, shapes: Shapes) -> int:
        n = self.hidden_size or 0
        return n * (n + shapes.input_size + shapes.output_size) + shapes.output_size


class Toy(Model):
    """h_t = U x_t + W h_{t-1}, read out at every step or at the last."""

    Config: ClassVar[type[ModelConfig]] = ToyConfig

    def __init__(self, config: ModelConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        n = self.hidden_size
        self.U = nn.Parameter(0.1 * torch.randn(n, shapes.input_size))
        self.W = nn.Parameter(0.5 * torch.eye(n))
        self.readout = nn.Linear(n, shapes.output_size)

    def recurrent_matrix(self) -> Tensor:
        return self.W

    def states(self, x: Tensor, state: State | None = None) -> Tensor:
        z = self.U.T[x] if self.shapes.input_kind == "symbols" else x @ self.U.T
        W = self.recurrent_matrix()
        h = z.new_zeros(z.shape[1:]) if state is None else state
        assert isinstance(h, Tensor)
        history = []
        for z_t in z:
            h = z_t + h @ W.T
            history.append(h)
        return torch.stack(history)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        h = self.states(x, state)
        read = h if self.shapes.readout == "all" else h[-1]
        return self.readout(read), h[-1]


class OverflowConfig(ToyConfig):
    """A recurrence that grows a thousandfold at each step."""

    name: Literal["toy_overflow"] = "toy_overflow"
    growth: float = Field(1e3, gt=0)


class Overflow(Toy):
    """Overflows to infinity within a sequence of a dozen steps."""

    Config = OverflowConfig

    def recurrent_matrix(self) -> Tensor:
        assert isinstance(self.config, OverflowConfig)
        return self.config.growth * torch.eye(self.hidden_size)


class BugConfig(ToyConfig):
    """A model with a bug."""

    name: Literal["toy_bug"] = "toy_bug"


class Bug(Toy):
    """Raises in its third forward pass."""

    Config = BugConfig
    calls = 0

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        self.calls += 1
        if self.calls == 3:
            raise LookupError("the toy's bug: there is no third pass")
        return super().forward(x, state)


class SlowConfig(ToyConfig):
    """A model that takes its time."""

    name: Literal["toy_slow"] = "toy_slow"
    seconds: float = Field(0.02, ge=0, description="Sleep in each forward pass")
    shade: int = Field(0, description="Tells configurations apart and changes nothing else")


class Slow(Toy):
    """The toy cell with a sleep in each forward pass, so that kills find it at work.

    It writes a line for each step of training into the folder that `TOY_STEPS` names, if any, in a
    file for each shade. As long as a file such as `1.fails` lies there, the shade 1 fails.
    """

    Config = SlowConfig

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        assert isinstance(self.config, SlowConfig)
        if torch.is_grad_enabled() and (folder := os.environ.get("TOY_STEPS")):
            steps = Path(folder, str(self.config.shade))
            if steps.with_suffix(".fails").exists():
                raise LookupError(f"{steps}.fails is there")
            with steps.open("a") as file:
                file.write(f"{os.getpid()}\n")
        time.sleep(self.config.seconds)
        return super().forward(x, state)


class HangConfig(ToyConfig):
    """A model that may hang."""

    name: Literal["toy_hang"] = "toy_hang"
    hangs: bool = False


class Hang(Toy):
    """Hangs for ever in its third forward pass, in a native call that never frees the GIL."""

    Config = HangConfig
    calls = 0

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        assert isinstance(self.config, HangConfig)
        self.calls += 1
        if self.config.hangs and self.calls == 3:
            ctypes.PyDLL(None).pause()
        return super().forward(x, state)


class HoardConfig(ToyConfig):
    """A model that may take memory without end."""

    name: Literal["toy_hoard"] = "toy_hoard"
    megabytes: int = Field(0, ge=0, description="Memory that each forward pass takes and keeps")


class Hoard(Toy):
    """Keeps memory with each forward pass."""

    Config = HoardConfig

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        assert isinstance(self.config, HoardConfig)
        self.hoard = [*getattr(self, "hoard", []), torch.ones(self.config.megabytes, 250_000)]
        return super().forward(x, state)

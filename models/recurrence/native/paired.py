"""The compiled steps of recurrences whose units go in pairs: real and imaginary part."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigensweep.models.recurrence.complex_reference import PairedActivation
from eigensweep.models.recurrence.native.calls import (
    CompiledSteps,
    addresses,
    integers,
    lane_strides,
    numbers,
    pack,
    pack_rows,
    pointers,
    row_length,
)
from eigensweep.models.recurrence.paired import PairedSteps
from eigensweep.models.recurrence.steps import Parameters

SOURCE = Path(__file__).with_name("paired.cpp")


class Call(ctypes.Structure):
    """`struct Call` of paired.cpp: the arguments of one call, in the same order."""

    _fields_ = (
        *pointers("H", "G", "db", "W", "b"),
        *integers("lane_H", "lane_G", "lane_W"),
        *integers("lanes", "steps", "batch", "n", "half", "threads"),
        *numbers("inside", "shift", "below"),
    )


class NativePairedSteps(PairedSteps):
    """`PairedSteps` as compiled loops, in float32 or float64. Threads share the batch.

    Products over all steps of a chunk stay with PyTorch.
    """

    packed: Tensor | None = None

    def __init__(self, parameters: Parameters, activation: PairedActivation) -> None:
        self.compiled = CompiledSteps.load(SOURCE, parameters.W.dtype)
        super().__init__(parameters, activation)

    def half_of(self, n: int) -> int:
        return row_length(n, self.compiled.panel)

    def run(self, H: Tensor) -> None:
        if self.packed is None:
            self.packed = pack_rows(self.parameters.W, self.compiled.panel)
        self._call(self.packed, H)

    def run_back(self, G: Tensor, H: Tensor) -> Tensor:
        if self.packed is None:
            self.packed = pack(self.parameters.W, self.compiled.panel)
        db = H.new_zeros(len(H), self.half)
        self._call(self.packed, H, G, db)
        return db[:, : self.n] / 2

    def _call(
        self, W: Tensor, H: Tensor, G: Tensor | None = None, db: Tensor | None = None
    ) -> None:
        b = pad(self.parameters.b, (0, self.half - self.n)).contiguous()
        tensors = {"H": H, "G": G, "db": db, "W": W, "b": b}
        assert all(t is None or t[0].is_contiguous() for t in tensors.values())
        lanes, length, batch, _ = H.shape
        call = Call(
            **addresses(**tensors),
            **lane_strides(H=H, G=G, W=W),
            lanes=lanes,
            steps=length - 1,
            batch=batch,
            n=self.n,
            half=self.half,
            threads=torch.get_num_threads(),
            **self.form._asdict(),
        )
        self.compiled.run(ctypes.byref(call))

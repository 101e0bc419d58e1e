"""The steps of the fast complex recurrence on a CPU, compiled as those of `native`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

from eigensweep.models.recurrence.native import fits, load_library, pack, row_length
from eigensweep.models.recurrence.paired import PairedSteps

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in ("native_paired.cpp", "native_jobs.cpp", "native_kernels.cpp")
)


class NativePairedSteps(PairedSteps):
    """The loops over steps as compiled code, in float32 or float64; threads share the batch.

    Products over all steps of a chunk stay with PyTorch.
    """

    packed: Tensor | None = None

    def half_of(self, n: int) -> int:
        library, W = load_library(SOURCES), self.parameters.W
        assert library is not None
        self.panel = library.vector_bytes() // W.element_size()
        self.step = library.step_float if W.dtype == torch.float32 else library.step_double
        return row_length(n, self.panel)

    def run(self, H: Tensor) -> None:
        if self.packed is None:
            self.packed = pack(self.parameters.W.mT, self.panel)
        self._call(self.packed, H)

    def run_back(self, G: Tensor, H: Tensor) -> Tensor:
        if self.packed is None:
            self.packed = pack(self.parameters.W, self.panel)
        db = H.new_zeros(len(H), self.half)
        self._call(self.packed, H, G, db)
        return db[:, : self.n] / 2

    def _call(
        self, W: Tensor, H: Tensor, G: Tensor | None = None, db: Tensor | None = None
    ) -> None:
        b = pad(self.parameters.b, (0, self.half - self.n)).contiguous()
        tensors = (H, G, db, W, b)
        assert all(t is None or t[0].is_contiguous() for t in tensors)
        lanes, length, batch, _ = H.shape
        call = Call(
            *(None if t is None else t.data_ptr() for t in tensors),
            *(0 if t is None else t.stride(0) for t in (H, G, W)),
            *(lanes, length - 1, batch, self.n, self.half, torch.get_num_threads()),
            *self.form,
        )
        self.step(ctypes.byref(call))


class Call(ctypes.Structure):
    """`struct Call` of the source, field by field."""

    _fields_ = (
        *((f"tensor_{i}", ctypes.c_void_p) for i in range(5)),
        *((f"size_{i}", ctypes.c_int64) for i in range(9)),
        *((f"number_{i}", ctypes.c_double) for i in range(3)),
    )


def is_available(W: Tensor) -> bool:
    """Return whether the native steps can run with W; compiles them if they have yet to be."""
    return fits(W) and load_library(SOURCES) is not None

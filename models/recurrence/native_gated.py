"""The steps of the fast LSTM and GRU on a CPU, compiled as those of `native`."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor

from eigensweep.models.recurrence.gated_steps import ChoGRUSteps, GatedSteps, GRUSteps, LSTMSteps
from eigensweep.models.recurrence.native import fits, load_library, pack, row_length

SOURCES = tuple(
    Path(__file__).with_name(f"native_{name}.cpp")
    for name in ("gated", "gated_kernels", "lstm", "gru", "jobs", "kernels")
)
LSTM, LSTM_DIAGONAL, LSTM_FULL, GRU, GRU_CHO, GORU = range(6)
"""`enum Cell` of the source."""


class NativeGatedSteps(GatedSteps):
    """The loops over steps as compiled code, in float32 or float64; threads share the batch.

    Products over all steps of a chunk stay with PyTorch.
    """

    def row_of(self, n: int) -> int:
        library = load_library(SOURCES)
        assert library is not None
        single = self.U.dtype == torch.float32
        self.run = library.step_float if single else library.step_double
        self.panel = library.vector_bytes() // self.U.element_size()
        self.bias: Tensor | None = None
        return row_length(n, self.panel)

    cell: int
    """The number of the cell in the source."""

    def packed_forward(self) -> tuple[Tensor, Tensor | None]:
        """Return R and the other weights as the forward steps read them."""
        return self._interleaved(self.weights[0]), None

    def packed_backward(self) -> tuple[Tensor, Tensor | None]:
        """Return R and the other weights as the backward steps read them."""
        return self._spread_and_packed(self.weights[0]), None

    def _interleaved(self, R: Tensor) -> Tensor:
        gates = [pack(gate.mT, self.panel) for gate in torch.split(R, self.n, 1)]
        return torch.stack(gates, 2)

    def _spread_and_packed(self, R: Tensor) -> Tensor:
        return pack(self.spread(R, R.shape[1] // self.n), self.panel)

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        if self.bias is None:
            self.packed, self.bias = self.packed_forward(), self.spread(self.b).contiguous()
            self.table = self.Ut.contiguous()
        if x.is_floating_point():
            made = self.columns(A, 0, self.met).flatten(1, 2)
            torch.bmm(x.flatten(1, 2), self.Ut, out=made)
        self._call(S=S, A=A, b=self.bias, x=x, table=self.table)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        if not self.sums:
            self.packed = self.packed_backward()
        self._call(S=S, A=A, G=G, D=D, carry=carry)

    def _call(
        self,
        *,
        S: Tensor,
        A: Tensor,
        G: Tensor | None = None,
        carry: Tensor | None = None,
        D: Tensor | None = None,
        b: Tensor | None = None,
        table: Tensor | None = None,
        x: Tensor | None = None,
    ) -> None:
        symbols = None if x is None or x.is_floating_point() else x
        tensors = (S, A, G, carry, D, *self.packed, b, table, symbols)
        inner = (S[0, 0], A[0], *(t[0] for t in tensors[2:] if t is not None))
        assert all(t.is_contiguous() for t in inner)
        strides = (0 if t is None else t.stride(0) for t in (S, A, G, D, *self.packed, symbols))
        call = Call(
            *(None if t is None else t.data_ptr() for t in tensors),
            *strides,
            S.stride(1),
            *(self.lanes, A.shape[1], A.shape[2], self.n, self.row, self.m),
            *(self.states, self.kept, self.met, self.back, self.seen, self.cell),
            torch.get_num_threads(),
        )
        self.run(ctypes.byref(call))


class Call(ctypes.Structure):
    """`struct Call` of the source, field by field."""

    _fields_ = (
        *((f"tensor_{i}", ctypes.c_void_p) for i in range(10)),
        *((f"size_{i}", ctypes.c_int64) for i in range(21)),
    )


class NativeLSTMSteps(NativeGatedSteps, LSTMSteps):
    """LSTM, with or without peepholes."""

    @property
    def cell(self) -> int:  # type: ignore[override]
        return {"none": LSTM, "diagonal": LSTM_DIAGONAL, "output_full": LSTM_FULL}[self.peephole]

    def packed_forward(self) -> tuple[Tensor, Tensor | None]:
        full = self.peephole == "output_full"
        other = pack(self.weights[1].mT, self.panel) if full else self._vectors()
        return super().packed_forward()[0], other

    def packed_backward(self) -> tuple[Tensor, Tensor | None]:
        full = self.peephole == "output_full"
        other = self._spread_and_packed(self.weights[1]) if full else self._vectors()
        return super().packed_backward()[0], other

    def _vectors(self) -> Tensor | None:
        if self.peephole == "none":
            return None
        return self.spread(torch.cat(self.weights[1:], 1), 3).contiguous()


class NativeGRUSteps(NativeGatedSteps, GRUSteps):
    """GRU, the reset gate applied to R h."""

    cell = GRU


class NativeChoGRUSteps(NativeGatedSteps, ChoGRUSteps):
    """GRU, the reset gate applied to h."""

    cell = GRU_CHO

    def packed_forward(self) -> tuple[Tensor, Tensor | None]:
        R, R_n = torch.split(self.weights[0], [2 * self.n, self.n], 1)
        return self._interleaved(R), self._interleaved(R_n)

    def packed_backward(self) -> tuple[Tensor, Tensor | None]:
        R, R_n = torch.split(self.weights[0], [2 * self.n, self.n], 1)
        return self._spread_and_packed(R), self._spread_and_packed(R_n)


NATIVE: dict[type[GatedSteps], type[GatedSteps]] = {
    LSTMSteps: NativeLSTMSteps,
    GRUSteps: NativeGRUSteps,
    ChoGRUSteps: NativeChoGRUSteps,
}


def is_available(R: Tensor) -> bool:
    """Return whether the native steps can run with R; compiles them if they have yet to be."""
    return fits(R) and load_library(SOURCES) is not None

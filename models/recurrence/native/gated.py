"""The compiled steps of LSTM, GRU, GORU, coRNN and LEM."""

from __future__ import annotations

import ctypes
from enum import IntEnum
from pathlib import Path

import torch
from torch import Tensor

from eigensweep.models.recurrence.gated_steps import (
    ChoGRUSteps,
    GatedSteps,
    GORUSteps,
    GRUSteps,
    LSTMSteps,
)
from eigensweep.models.recurrence.native.calls import (
    CompiledSteps,
    addresses,
    integers,
    lane_strides,
    pack,
    pack_rows,
    pointers,
    row_length,
)
from eigensweep.models.recurrence.ode_steps import CoRNNSteps, LEMSteps

SOURCE = Path(__file__).with_name("gated.cpp")


class Cell(IntEnum):
    """`enum Cell` of gated_kernels.h, in the same order."""

    LSTM = 0
    LSTM_DIAGONAL = 1
    LSTM_FULL = 2
    GRU = 3
    GRU_CHO = 4
    GORU = 5
    CORNN = 6
    LEM = 7


class Call(ctypes.Structure):
    """`struct Call` of gated_kernels.h: the arguments of one call, in the same order."""

    _fields_ = (
        *pointers("S", "A", "G", "carry", "D", "R", "other", "b", "table", "symbols"),
        *integers("lane_S", "lane_A", "lane_G", "lane_D", "lane_R", "lane_other", "lane_symbols"),
        *integers("state", "lanes", "steps", "batch", "n", "row", "m"),
        *integers("states", "kept", "met", "back", "seen", "cell", "threads"),
    )


class NativeGatedSteps(GatedSteps):
    """The loops over steps as compiled code, in float32 or float64. Threads share the batch.

    Products over all steps of a chunk stay with PyTorch.
    """

    cell: Cell

    def __init__(self, U: Tensor, b: Tensor, weights: tuple[Tensor, ...], seen: int = 0) -> None:
        self.compiled = CompiledSteps.load(SOURCE, U.dtype)
        self.bias: Tensor | None = None
        super().__init__(U, b, weights, seen)

    def row_of(self, n: int) -> int:
        return row_length(n, self.compiled.panel)

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        """Return R and the other weights as the forward steps read them."""
        return self._interleave(self.weights[0]), None

    def pack_backward(self) -> tuple[Tensor, Tensor | None]:
        """Return R and the other weights as the backward steps read them."""
        return self._spread_and_pack(self.weights[0]), None

    def _interleave(self, R: Tensor) -> Tensor:
        gates = [pack_rows(gate, self.compiled.panel) for gate in torch.split(R, self.n, 1)]
        return torch.stack(gates, 2)

    def _spread_and_pack(self, R: Tensor) -> Tensor:
        return pack(self.spread(R, R.shape[1] // self.n), self.compiled.panel)

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        if self.bias is None:
            self.packed, self.bias = self.pack_forward(), self.spread(self.b).contiguous()
            self.table = self.Ut.contiguous()
        if x.is_floating_point():
            made = self.columns(A, 0, self.met).flatten(1, 2)
            torch.bmm(x.flatten(1, 2), self.Ut, out=made)
        symbols = None if x.is_floating_point() else x
        self._call(S=S, A=A, b=self.bias, symbols=symbols, table=self.table)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        if not self.sums:
            self.packed = self.pack_backward()
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
        symbols: Tensor | None = None,
    ) -> None:
        R, other = self.packed
        strided = {"S": S, "A": A, "G": G, "D": D, "R": R, "other": other, "symbols": symbols}
        plain = {"carry": carry, "b": b, "table": table}
        inner = [t[0] for t in (A, G, D, R, other, symbols, *plain.values()) if t is not None]
        assert all(t.is_contiguous() for t in (S[0, 0], *inner))
        call = Call(
            **addresses(**strided, **plain),
            **lane_strides(**strided),
            state=S.stride(1),
            lanes=self.lanes,
            steps=A.shape[1],
            batch=A.shape[2],
            n=self.n,
            row=self.row,
            m=self.m,
            states=self.states,
            kept=self.kept,
            met=self.met,
            back=self.back,
            seen=self.seen,
            cell=self.cell,
            threads=torch.get_num_threads(),
        )
        self.compiled.run(ctypes.byref(call))


class NativeLSTMSteps(NativeGatedSteps, LSTMSteps):
    """LSTM, with or without peepholes."""

    @property
    def cell(self) -> Cell:  # type: ignore[override]
        kinds = {
            "none": Cell.LSTM,
            "diagonal": Cell.LSTM_DIAGONAL,
            "output_full": Cell.LSTM_FULL,
        }
        return kinds[self.peephole]

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        full = self.peephole == "output_full"
        other = pack_rows(self.weights[1], self.compiled.panel) if full else self._vectors()
        return super().pack_forward()[0], other

    def pack_backward(self) -> tuple[Tensor, Tensor | None]:
        full = self.peephole == "output_full"
        other = self._spread_and_pack(self.weights[1]) if full else self._vectors()
        return super().pack_backward()[0], other

    def _vectors(self) -> Tensor | None:
        if self.peephole == "none":
            return None
        return self.spread(torch.cat(self.weights[1:], 1), 3).contiguous()


class NativeGRUSteps(NativeGatedSteps, GRUSteps):
    """GRU, the reset gate applied to R h."""

    cell = Cell.GRU


class NativeChoGRUSteps(NativeGatedSteps, ChoGRUSteps):
    """GRU, the reset gate applied to h."""

    cell = Cell.GRU_CHO

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        R, R_n = torch.split(self.weights[0], [2 * self.n, self.n], 1)
        return self._interleave(R), self._interleave(R_n)

    def pack_backward(self) -> tuple[Tensor, Tensor | None]:
        R, R_n = torch.split(self.weights[0], [2 * self.n, self.n], 1)
        return self._spread_and_pack(R), self._spread_and_pack(R_n)


class NativeGORUSteps(NativeGatedSteps, GORUSteps):
    """GORU; the other weight is modReLU's threshold."""

    cell = Cell.GORU

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        return super().pack_forward()[0], self.spread(self.weights[1], 1).contiguous()


class NativeCoRNNSteps(NativeGatedSteps, CoRNNSteps):
    """coRNN; the other weights are Δt, γ and ε."""

    cell = Cell.CORNN

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        side_by_side = torch.cat(torch.split(self.weights[0], self.n, 1), 2)
        return pack_rows(side_by_side, self.compiled.panel), self.weights[1]

    def pack_backward(self) -> tuple[Tensor, Tensor | None]:
        each = torch.split(self.weights[0], self.n, 1)
        return torch.stack([self._spread_and_pack(R) for R in each], 1), self.weights[1]


class NativeLEMSteps(NativeGatedSteps, LEMSteps):
    """LEM; R has the matrices of y and then that of z, and the other weight is Δt."""

    cell = Cell.LEM

    def pack_forward(self) -> tuple[Tensor, Tensor | None]:
        parts = torch.split(self.weights[0], [3 * self.n, self.n], 1)
        return torch.cat([self._interleave(R).flatten(1) for R in parts], 1), self.weights[1]

    def pack_backward(self) -> tuple[Tensor, Tensor | None]:
        parts = torch.split(self.weights[0], [3 * self.n, self.n], 1)
        return torch.cat([self._spread_and_pack(R).flatten(1) for R in parts], 1), self.weights[1]


NATIVE: dict[type[GatedSteps], type[GatedSteps]] = {
    LSTMSteps: NativeLSTMSteps,
    GRUSteps: NativeGRUSteps,
    ChoGRUSteps: NativeChoGRUSteps,
    GORUSteps: NativeGORUSteps,
    CoRNNSteps: NativeCoRNNSteps,
    LEMSteps: NativeLEMSteps,
}

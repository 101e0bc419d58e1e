"""The compiled steps of h_t = f(U x_t + W h_{t-1}; b), read out as V h_t + c."""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import pad

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
from eigensweep.models.recurrence.steps import ACTIVATIONS, LEAK, Activation, Parameters

SOURCE = Path(__file__).with_name("ungated.cpp")

WIDE = 256
"""From so many units on, PyTorch's one product makes dL/dW faster than the compiled steps."""


class Call(ctypes.Structure):
    """`struct Call` of ungated.cpp: the arguments of one call, in the same order."""

    _fields_ = (
        *pointers("H", "G", "W", "b", "c", "values", "table", "symbols", "logits"),
        *pointers("dW", "db", "dU", "dV"),
        *integers("lane_H", "lane_G", "lane_x", "lane_logits"),
        *integers("lanes", "steps", "batch", "n", "row", "m", "p", "activation", "threads"),
        *numbers("leak"),
    )


class NativeSteps:
    """`Steps` as compiled loops, in float32 or float64. Threads share lanes and batch."""

    def __init__(self, parameters: Parameters, activation: Activation) -> None:
        self.parameters = U, W, b, _, c = parameters
        self.compiled = CompiledSteps.load(SOURCE, W.dtype)
        self.lanes, self.n, self.m = U.shape
        clips = activation == "clipped"  # the scale of each h stands behind it
        self.row = row_length(self.n + clips, self.compiled.panel)
        self.b, self.c, self.table = self._pad(b), c.contiguous(), self._pad(U.mT)
        self.activation = len(ACTIVATIONS) if clips else ACTIVATIONS.index(activation)
        self.sums: tuple[Tensor, ...] = ()
        self.packed: Tensor | None = None

    def forward(self, H: Tensor, x: Tensor, logits: Tensor | None) -> None:
        if self.packed is None:  # [h, x] meets [W, U], and [V, 0] for the readout
            U, W, _, V, _ = self.parameters
            U = U if x.is_floating_point() else U[..., :0]
            parts = [torch.cat((W, U), 2)]
            if logits is not None:
                parts.append(pad(V, (0, U.shape[-1])))
            self.packed = torch.cat([pack_rows(part, self.compiled.panel) for part in parts], 1)
        if not self.m:
            H[:, 1:, :, : self.n] = x
        self._call(H=H, x=x, logits=logits, W=self.packed)

    def backward(self, G: Tensor, H: Tensor, x: Tensor, d_logits: Tensor | None) -> None:
        if self.packed is None:  # [dL/dz, dL/dlogits] meets [W; V]
            U, W, b, V, _ = self.parameters
            matrix = W if d_logits is None else torch.cat((W, V), 1)
            self.packed = pack(matrix, self.compiled.panel)
            shapes = (t.shape[1:-1] for t in (U.mT, W, b, V))
            self.sums = tuple(W.new_zeros(self.lanes, *shape, self.row) for shape in shapes)
        self._call(H=H, x=x, logits=d_logits, W=self.packed, G=G)
        if self.n >= WIDE:
            dz, before = G[:, :-1, :, : self.n].flatten(1, 2), H[:, :-1].flatten(1, 2)
            self.sums[1].baddbmm_(dz.mT, before)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        dUt, dW, db, dV = (t[..., : self.n] for t in self.sums)
        return dUt.mT, dW, db, dV

    def _pad(self, rows: Tensor) -> Tensor:
        return pad(rows, (0, self.row - self.n)).contiguous()

    def _call(
        self, *, H: Tensor, x: Tensor, logits: Tensor | None, W: Tensor, G: Tensor | None = None
    ) -> None:
        symbols = None if x.is_floating_point() else x
        dU, dW, db, dV = self.sums or (None,) * 4
        tensors = {
            "H": H,
            "G": G,
            "W": W,
            "b": self.b,
            "c": self.c,
            "values": x if symbols is None and self.m else None,
            "table": self.table,
            "symbols": symbols,
            "logits": logits,
            "dW": None if self.n >= WIDE else dW,
            "db": db,
            "dU": dU,
            "dV": dV,
        }
        assert all(t is None or t[0].is_contiguous() for t in tensors.values())
        _, length, batch, _ = H.shape
        call = Call(
            **addresses(**tensors),
            **lane_strides(H=H, G=G, x=x, logits=logits),
            lanes=self.lanes,
            steps=length - 1,
            batch=batch,
            n=self.n,
            row=self.row,
            m=self.m,
            p=self.parameters.V.shape[1],
            activation=self.activation,
            threads=torch.get_num_threads(),
            leak=LEAK,
        )
        self.compiled.run(ctypes.byref(call))

"""The steps of gated networks and ODEs on an NVIDIA GPU: one launch runs the steps of a chunk.

Projections and sums over all steps are library products, as in the PyTorch form. Where the kernel
cannot be used, one line of log says so and the loop runs in PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from eigensweep.models.recurrence.cuda import kernels
from eigensweep.models.recurrence.cuda.compiler import CompileError
from eigensweep.models.recurrence.gated_steps import (
    ChoGRUSteps,
    GatedSteps,
    GORUSteps,
    GRUSteps,
    LSTMSteps,
)
from eigensweep.models.recurrence.native.gated import Cell
from eigensweep.models.recurrence.ode_steps import CoRNNSteps, LEMSteps

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("gated.cu")

CLUSTERS: dict[Cell, tuple[tuple[int, int], ...]] = {
    Cell.LSTM: ((96, 1), (128, 2), (192, 4), (384, 8)),
    Cell.LSTM_DIAGONAL: ((96, 1), (128, 2), (192, 4), (384, 8)),
    Cell.LSTM_FULL: ((80, 1), (112, 2), (160, 4), (288, 8)),
    Cell.GRU: ((96, 1), (128, 2), (208, 4), (416, 8)),
    Cell.GRU_CHO: ((96, 1), (128, 2), (208, 4), (416, 8)),
    Cell.GORU: ((96, 1), (128, 2), (208, 4), (416, 8)),
    Cell.CORNN: ((128, 1), (176, 2), (256, 4), (512, 8)),
    Cell.LEM: ((96, 1), (128, 2), (192, 4), (352, 8)),
}
"""Up to so many units, so many blocks share the matrices. What exceeds the registers of these
blocks is in their shared memory; the last size is the largest that fits."""

ARGUMENT_TYPES = (*(ctypes.c_void_p,) * 8, *(ctypes.c_longlong,) * 5, *(ctypes.c_int,) * 3)


@dataclass(frozen=True)
class GatedShape:
    """What the kernel is compiled for."""

    cell: Cell
    units: int
    """Number n of hidden units."""
    rows: int
    """Rows of a lane's batch that one cluster runs."""
    blocks: int
    """Blocks of a cluster."""
    is_backward: bool

    def definitions(self, shared_bytes: int) -> kernels.Definitions:
        """Return the macros that the source is compiled with, for blocks with so much memory."""
        return (
            ("N", self.units),
            ("ROWS", self.rows),
            ("CLUSTER", self.blocks),
            ("BACKWARD", int(self.is_backward)),
            ("CELL", int(self.cell)),
            ("SHARED_BYTES", shared_bytes),
        )


def count_blocks(cell: Cell, units: int) -> int:
    """Return how many blocks share the matrices of so many units.

    Raises:
        ValueError: if there are more units than the kernel takes.
    """
    for most, blocks in CLUSTERS[cell]:
        if units <= most:
            return blocks
    raise ValueError(f"the kernel takes at most {most} units of this cell; there are {units}")


def count_clusters(cell: Cell, units: int, device: torch.device) -> int:
    """Return how many clusters of the kernel for so many units run at once on a GPU."""
    shape = GatedShape(cell, units, 1, count_blocks(cell, units), is_backward=False)
    return _count_clusters(shape, device.index or 0)


@functools.cache
def _count_clusters(shape: GatedShape, device: int) -> int:
    shared_bytes = kernels.count_shared_bytes(device)
    return kernels.count_clusters(load_kernel(shape, device), shape.blocks, device, shared_bytes)


class CudaGatedSteps(GatedSteps):
    """The loops over time in one kernel; float32."""

    CELL: ClassVar[Cell | None] = None

    @property
    def cell(self) -> Cell:
        """The kind of cell that the kernel is compiled for."""
        assert self.CELL is not None
        return self.CELL

    def forward(self, S: Tensor, A: Tensor, x: Tensor) -> None:
        self.project(x, A)
        self._run(S, A)

    def backward(self, G: Tensor, S: Tensor, A: Tensor, D: Tensor | None, carry: Tensor) -> None:
        vectors = VECTORS.get(self.cell, 0)
        sums = G.new_empty(self.lanes, G.shape[2], (self.met + vectors) * self.n)
        self._run(S, A, G=G, D=D, carry=carry, sums=sums)
        self._gained = sums.sum(1)

    def sum_of_arguments(self, G: Tensor) -> Tensor:
        return self.columns(self._gained, 0, self.met)

    def sums_of_vectors(self, G: Tensor, S: Tensor, A: Tensor) -> Tensor:
        return self.columns(self._gained, self.met, VECTORS[self.cell])

    def _run(
        self,
        S: Tensor,
        A: Tensor,
        *,
        G: Tensor | None = None,
        D: Tensor | None = None,
        carry: Tensor | None = None,
        sums: Tensor | None = None,
    ) -> None:
        R, *_ = self.weights
        blocks = count_blocks(self.cell, self.n)
        clusters = count_clusters(self.cell, self.n, R.device)
        rows = kernels.choose_rows(self.lanes * A.shape[2], clusters)
        shape = GatedShape(self.cell, self.n, rows, blocks, is_backward=G is not None)
        launch(shape, S, A, G, carry, D, *self._matrices, sums, self.seen)

    @functools.cached_property
    def _matrices(self) -> tuple[Tensor, Tensor]:
        R, *others = self.weights
        other = torch.cat(others, 1) if others else R
        return R.contiguous(), other.contiguous()


class CudaLSTMSteps(CudaGatedSteps, LSTMSteps):
    """LSTM, with or without peepholes."""

    @property
    def cell(self) -> Cell:
        return PEEPHOLES[len(self.weights)]


class CudaGRUSteps(CudaGatedSteps, GRUSteps):
    """GRU, the reset gate applied to R h."""

    CELL = Cell.GRU


class CudaChoGRUSteps(CudaGatedSteps, ChoGRUSteps):
    """GRU, the reset gate applied to h."""

    CELL = Cell.GRU_CHO


class CudaGORUSteps(CudaGatedSteps, GORUSteps):
    """GORU; the other weight is modReLU's threshold."""

    CELL = Cell.GORU


class CudaCoRNNSteps(CudaGatedSteps, CoRNNSteps):
    """coRNN; the other weights are Δt, γ and ε."""

    CELL = Cell.CORNN


class CudaLEMSteps(CudaGatedSteps, LEMSteps):
    """LEM; the other weight is Δt."""

    CELL = Cell.LEM


VECTORS = {Cell.LSTM_DIAGONAL: 3, Cell.GORU: 1}
"""Vectors of weights whose gradients are sums over steps and batch, as that of b is."""

PEEPHOLES = {1: Cell.LSTM, 2: Cell.LSTM_FULL, 3: Cell.LSTM_DIAGONAL}
"""The cell of an LSTM with so many weights, peepholes included."""

CUDA: dict[type[GatedSteps], type[CudaGatedSteps]] = {
    LSTMSteps: CudaLSTMSteps,
    GRUSteps: CudaGRUSteps,
    ChoGRUSteps: CudaChoGRUSteps,
    GORUSteps: CudaGORUSteps,
    CoRNNSteps: CudaCoRNNSteps,
    LEMSteps: CudaLEMSteps,
}


def launch(
    shape: GatedShape,
    S: Tensor,
    A: Tensor,
    G: Tensor | None,
    carry: Tensor | None,
    D: Tensor | None,
    R: Tensor,
    other: Tensor,
    sums: Tensor | None,
    seen: int,
) -> None:
    """Run the kernel on the current stream. Tensors are those of `GatedSteps`, without padding."""
    lanes, _, _, batch, _ = S.shape
    kernel = load_kernel(shape, R.device.index or 0)
    blocks = lanes * -(-batch // shape.rows) * shape.blocks
    shared_bytes = kernels.count_shared_bytes(R.device.index or 0)
    arguments = collect_arguments(S, A, G, carry, D, R, other, sums, seen)
    kernels.launch_kernel(kernel, R.device, blocks, arguments, ARGUMENT_TYPES, shared_bytes)


def collect_arguments(
    S: Tensor,
    A: Tensor,
    G: Tensor | None,
    carry: Tensor | None,
    D: Tensor | None,
    R: Tensor,
    other: Tensor,
    sums: Tensor | None,
    seen: int,
) -> tuple[int, ...]:
    """Return the arguments of the kernel, in its order."""
    inner = [t[0] for t in (A, G, D) if t is not None]
    whole = [t for t in (R, other, carry, sums) if t is not None]
    assert all(t.is_contiguous() for t in (S[0, 0], *inner, *whole))
    tensors = (S, A, G, carry, D, R, other, sums)
    pointers = (0 if t is None else t.data_ptr() for t in tensors)
    lanes = (0 if t is None else t.stride(0) for t in (A, G, D))
    return (*pointers, S.stride(0), S.stride(1), *lanes, A.shape[1], A.shape[2], seen)


def is_available(steps: type[GatedSteps], weights: tuple[Tensor, ...]) -> bool:
    """Return whether the kernel can run with these weights of a cell, R first.

    It needs float32, as many units as `CLUSTERS` says, a GPU that is new enough, and cuda-bindings.
    The first call for a size compiles and loads all kernels that may be chosen for it: so none is
    loaded later, when a CUDA graph is captured.
    """
    R = weights[0]
    if not R.is_cuda or R.dtype != torch.float32:
        return False
    return _is_loaded(cell_of(steps, len(weights)), R.shape[-1], R.device.index or 0)


def cell_of(steps: type[GatedSteps], weights: int) -> Cell:
    """Return the kind of cell of some steps with so many weights, R included."""
    return CUDA[steps].CELL or PEEPHOLES[weights]


@functools.cache
def _is_loaded(cell: Cell, units: int, device: int) -> bool:
    try:
        blocks = count_blocks(cell, units)
        kernels.require_capability(device, blocks)
        shapes = [
            GatedShape(cell, units, rows, blocks, is_backward)
            for rows in kernels.ROWS
            for is_backward in (False, True)
        ]
        kernels.load_together(SOURCE, lambda shape: load_kernel(shape, device), shapes)
    except (ImportError, CompileError, ValueError) as error:
        name = cell.name.lower()
        logger.warning("the %s of %d units runs step by step: %s", name, units, error)
        return False
    return True


def load_kernel(shape: GatedShape, device: int) -> Any:
    """Return the kernel of a shape; errors are those of `kernels.load_kernel`."""
    shared_bytes = kernels.count_shared_bytes(device)
    return kernels.load_kernel(SOURCE, shape.definitions(shared_bytes), device, shared_bytes)

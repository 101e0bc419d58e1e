"""The steps of ungated recurrences on an NVIDIA GPU: one launch runs all time steps of a chunk.

Real networks and complex ones, whose units go in pairs, share the kernel of `scan.cu`, forward and
backward. Projections and sums over all steps are library products, as in `TorchSteps`. Where the
kernel cannot be used, one line of log says so and the loop runs in PyTorch.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eigensweep.models.recurrence.complex_reference import FORMS, PairedActivation
from eigensweep.models.recurrence.cuda import kernels
from eigensweep.models.recurrence.cuda.compiler import CompileError
from eigensweep.models.recurrence.paired import PairedSteps
from eigensweep.models.recurrence.steps import ACTIVATIONS, LEAK, Activation, Parameters, TorchSteps

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("scan.cu")

KERNELS: tuple[Activation | PairedActivation, ...] = (*ACTIVATIONS, *FORMS)
"""What the kernel can be compiled for, in the order of its ACTIVATION."""

LARGEST = 512
"""Largest number n of units; for more, library products run step by step."""

ROWS = (1, 2, 3, 4, 5, 6)
"""Rows of a batch that a cluster can run side by side."""

CLUSTERS = ((192, 1), (256, 2), (320, 4), (LARGEST, 8))
"""Up to so many units, so many blocks share the matrix: then it fits into their registers."""

PAIRED_CLUSTERS = ((160, 1), *CLUSTERS[1:])
"""The same for units in pairs."""

ARGUMENT_TYPES = (
    *(ctypes.c_void_p,) * 5,
    *(ctypes.c_longlong,) * 2,
    *(ctypes.c_int,) * 2,
    *(ctypes.c_float,) * 4,
)


@dataclass(frozen=True)
class ScanShape:
    """What the kernel is compiled for."""

    units: int
    """Number n of hidden units, at most `LARGEST`."""
    rows: int
    """Rows of a lane's batch that one cluster runs."""
    blocks: int
    """Blocks of a cluster."""
    is_backward: bool
    activation: Activation | PairedActivation

    @property
    def definitions(self) -> kernels.Definitions:
        """The macros that `scan.cu` is compiled with."""
        return (
            ("N", self.units),
            ("ROWS", self.rows),
            ("CLUSTER", self.blocks),
            ("BACKWARD", int(self.is_backward)),
            ("ACTIVATION", KERNELS.index(self.activation)),
        )


def choose_shape(
    units: int,
    sequences: int,
    clusters: int,
    *,
    is_backward: bool = False,
    activation: Activation | PairedActivation = "modrelu",
) -> ScanShape:
    """Return the shape for `sequences` rows, over all lanes, where so many clusters run at once.

    >>> choose_shape(192, sequences=20, clusters=132)
    ScanShape(units=192, rows=1, blocks=1, is_backward=False, activation='modrelu')
    >>> choose_shape(192, sequences=640, clusters=132).rows
    5
    """
    blocks = count_blocks(units, is_paired=activation in FORMS)
    rows = kernels.choose_rows(sequences, clusters, ROWS)
    return ScanShape(units, rows, blocks, is_backward, activation)


def count_blocks(units: int, *, is_paired: bool = False) -> int:
    """Return how many blocks share the matrix of so many units.

    Raises:
        ValueError: if there are more units than `LARGEST`.
    """
    for most, blocks in PAIRED_CLUSTERS if is_paired else CLUSTERS:
        if units <= most:
            return blocks
    raise ValueError(f"the scan kernel takes at most {LARGEST} units; there are {units}")


class CudaSteps(TorchSteps):
    """The steps with the loop over time in one kernel; float32."""

    def run_forward(self, H: Tensor) -> None:
        run_scan(self.parameters, self.activation, H, H)

    def run_backward(self, G: Tensor, H: Tensor) -> Tensor:
        return run_scan(self.parameters, self.activation, G, H).sum(1)


class CudaPairedSteps(PairedSteps):
    """The steps of units in pairs with the loop over time in one kernel; float32."""

    def __init__(self, parameters: Parameters, activation: PairedActivation) -> None:
        super().__init__(parameters, activation)
        self.activation = activation

    def run(self, H: Tensor) -> None:
        run_scan(self.parameters, self.activation, H, H)

    def run_back(self, G: Tensor, H: Tensor) -> Tensor:
        return run_scan(self.parameters, self.activation, G, H).sum(1)


def run_scan(
    parameters: Parameters, activation: Activation | PairedActivation, Y: Tensor, H: Tensor
) -> Tensor:
    """Run the kernel over Y, (M, steps + 1, B, row), in place: forward if Y is H, else backward.

    Returns parts of dL/db, (M, B, n), whose sum over B is meant; forward it is empty.
    """
    _, W, b, _, _ = parameters
    lanes, _, batch, _ = Y.shape
    is_backward, n = Y is not H, W.shape[-1]
    shape = choose_shape(
        n,
        lanes * batch,
        count_clusters(n, activation, W.device),
        is_backward=is_backward,
        activation=activation,
    )
    sums = W.new_empty(lanes, batch, n if is_backward else 0)
    launch(shape, Y, H, W.contiguous(), b.contiguous(), sums)
    return sums


def count_clusters(
    units: int, activation: Activation | PairedActivation, device: torch.device
) -> int:
    """Return how many clusters of the kernel for so many units run at once on a GPU."""
    blocks, number = count_blocks(units, is_paired=activation in FORMS), device.index or 0
    return _count_clusters(ScanShape(units, 1, blocks, False, activation), number)


@functools.cache
def _count_clusters(shape: ScanShape, device: int) -> int:
    return kernels.count_clusters(load_kernel(shape, device), shape.blocks, device)


def launch(shape: ScanShape, Y: Tensor, H: Tensor, W: Tensor, b: Tensor, sums: Tensor) -> None:
    """Run the kernel on the current stream. Within a lane all tensors are contiguous.

    Y and H are (M, steps + 1, B, row), W is (M, n, n), b is (M, n), `sums` as `run_scan` returns.
    """
    lanes, times, batch, _ = Y.shape
    assert Y[0].is_contiguous()
    assert H[0].is_contiguous()
    pointers = (tensor.data_ptr() for tensor in (Y, H, W, b, sums))
    arguments = (*pointers, *(Y.stride(0), H.stride(0), times - 1, batch), *numbers_of(shape))
    blocks = lanes * -(-batch // shape.rows) * shape.blocks
    kernel = load_kernel(shape, W.device.index or 0)
    kernels.launch_kernel(kernel, W.device, blocks, arguments, ARGUMENT_TYPES)


def numbers_of(shape: ScanShape) -> tuple[float, float, float, float]:
    """Return the numbers that the activation is computed with, in the order of the kernel."""
    if shape.activation == "smoothed_modrelu" or shape.activation == "shifted_modrelu":
        return (0.0, *FORMS[shape.activation])
    return LEAK, 0.0, 0.0, 0.0


def is_available(W: Tensor, activation: Activation | PairedActivation) -> bool:
    """Return whether the kernel can run with W.

    It needs float32, at most `LARGEST` units, a GPU that is new enough, and cuda-bindings. The
    first call for a size compiles and loads all kernels that `run_scan` may choose for it: so none
    is loaded later, when a CUDA graph is captured.
    """
    n = W.shape[-1]
    if not W.is_cuda or W.dtype != torch.float32 or n > LARGEST:
        return False
    if activation == "clipped":  # a state's length is a sum over the units of all blocks
        _warn_of_clipping()
        return False
    return _is_loaded(n, activation, W.device.index or 0)


@functools.cache
def _warn_of_clipping() -> None:
    logger.warning("a recurrence with clipped states runs step by step: the kernel does not clip")


@functools.cache
def _is_loaded(units: int, activation: Activation | PairedActivation, device: int) -> bool:
    blocks = count_blocks(units, is_paired=activation in FORMS)
    try:
        kernels.require_capability(device, blocks)
        shapes = [
            ScanShape(units, rows, blocks, is_backward, activation)
            for rows in ROWS
            for is_backward in (False, True)
        ]
        kernels.load_together(SOURCE, lambda shape: load_kernel(shape, device), shapes)
    except (ImportError, CompileError) as error:
        logger.warning("the recurrence of %d units runs step by step: %s", units, error)
        return False
    return True


def load_kernel(shape: ScanShape, device: int) -> Any:
    """Return the kernel of a shape; errors are those of `kernels.load_kernel`."""
    return kernels.load_kernel(SOURCE, shape.definitions, device)

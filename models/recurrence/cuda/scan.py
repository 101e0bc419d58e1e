"""The steps of the ungated recurrence on an NVIDIA GPU: one launch runs all time steps of a chunk.

Projections and sums over all steps are library products, as in `TorchSteps`; the loop over time,
forward and backward, is the kernel of `scan.cu`. Where the kernel cannot be used, one line of log
says so and the loop runs in PyTorch.
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

from eigensweep.models.recurrence.cuda.compiler import CompileError, cached_cubin
from eigensweep.models.recurrence.native import cache_folder
from eigensweep.models.recurrence.steps import ACTIVATIONS, LEAK, Activation, TorchSteps

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("scan.cu")

THREADS = 512
"""Threads of a block."""

CLUSTERS = ((192, 1), (256, 2), (320, 4), (512, 8))
"""Up to so many units, so many blocks share the matrix: then it fits into their registers."""

LARGEST = CLUSTERS[-1][0]
"""Number n of units from which on library products are used step by step."""

ROWS = (1, 2, 4)
"""Rows of a batch that a cluster can run side by side."""

OLDEST = {1: (7, 0), 2: (9, 0)}
"""Compute capability that one block needs, and that more blocks than one need."""


ARGUMENT_TYPES = (
    *(ctypes.c_void_p,) * 4,
    *(ctypes.c_longlong,) * 2,
    *(ctypes.c_int,) * 2,
    ctypes.c_float,
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
    activation: Activation

    @property
    def definitions(self) -> dict[str, int]:
        """The macros that `scan.cu` is compiled with."""
        return {
            "N": self.units,
            "ROWS": self.rows,
            "CLUSTER": self.blocks,
            "BACKWARD": int(self.is_backward),
            "ACTIVATION": ACTIVATIONS.index(self.activation),
        }


def choose_shape(
    units: int,
    sequences: int,
    processors: int,
    *,
    is_backward: bool = False,
    activation: Activation = "modrelu",
) -> ScanShape:
    """Return the shape for `sequences` rows, over all lanes, on so many multiprocessors.

    A cluster takes as few rows as let all clusters run at once, for a step of more rows is slower.

    >>> choose_shape(192, sequences=20, processors=132)
    ScanShape(units=192, rows=1, blocks=1, is_backward=False, activation='modrelu')
    >>> choose_shape(512, sequences=128, processors=132).rows
    4
    """
    blocks = blocks_of(units)
    fitting = [rows for rows in ROWS if -(-sequences // rows) * blocks <= processors]
    return ScanShape(units, (fitting or ROWS[-1:])[0], blocks, is_backward, activation)


def blocks_of(units: int) -> int:
    """Return how many blocks share the matrix of so many units.

    Raises:
        ValueError: if there are more units than `LARGEST`.
    """
    for most, blocks in CLUSTERS:
        if units <= most:
            return blocks
    raise ValueError(f"the scan kernel takes at most {LARGEST} units; there are {units}")


class CudaSteps(TorchSteps):
    """The steps with the loop over time in one kernel; float32."""

    def run_forward(self, H: Tensor) -> None:
        self._launch(H, H, is_backward=False)

    def run_backward(self, G: Tensor, H: Tensor) -> None:
        self._launch(G, H, is_backward=True)

    def _launch(self, Y: Tensor, H: Tensor, *, is_backward: bool) -> None:
        _, W, b, _, _ = self.parameters
        lanes, _, batch, n = Y.shape
        shape = choose_shape(
            n,
            lanes * batch,
            count_processors(W.device),
            is_backward=is_backward,
            activation=self.activation,
        )
        launch(shape, Y, H, W.contiguous(), b.contiguous())


def launch(shape: ScanShape, Y: Tensor, H: Tensor, W: Tensor, b: Tensor) -> None:
    """Run the kernel over Y, (M, steps + 1, B, n), in place, on the current stream.

    H is read in the backward pass only. W is (M, n, n), b is (M, n); within a lane all tensors are
    contiguous.
    """
    from cuda.bindings import driver

    lanes, times, batch, _ = Y.shape
    assert Y[0].is_contiguous()
    assert H[0].is_contiguous()
    kernel = load_kernel(shape, W.device.index or 0)
    arguments = (
        *(tensor.data_ptr() for tensor in (Y, H, W, b)),
        *(Y.stride(0), H.stride(0), times - 1, batch, LEAK),
    )
    clusters = -(-batch // shape.rows)
    status, *_ = driver.cuLaunchKernel(
        kernel,
        *(clusters * shape.blocks, lanes, 1),
        *(THREADS, 1, 1),
        0,
        torch.cuda.current_stream(W.device).cuda_stream,
        (arguments, ARGUMENT_TYPES),
        0,
    )
    if status.value:
        raise RuntimeError(f"the scan kernel was not launched: {status.name}, {shape}")


def is_available(W: Tensor) -> bool:
    """Return whether the kernel can run with W; the first call for a size compiles it.

    It needs float32, at most `LARGEST` units, a GPU that is new enough, and cuda-bindings.
    """
    n = W.shape[-1]
    if not W.is_cuda or W.dtype != torch.float32 or n > LARGEST:
        return False
    return _is_compiled(n, W.device.index or 0)


@functools.cache
def _is_compiled(units: int, device: int) -> bool:
    blocks = blocks_of(units)
    try:
        if torch.cuda.get_device_capability(device) < OLDEST[min(blocks, 2)]:
            raise CompileError(f"{units} units need a GPU of compute capability 9.0 or newer")
        load_kernel(ScanShape(units, 1, blocks, False, "modrelu"), device)
    except (ImportError, CompileError, OSError) as error:
        logger.warning("the recurrence of %d units runs step by step: %s", units, error)
        return False
    return True


@functools.cache
def load_kernel(shape: ScanShape, device: int) -> Any:
    """Return the kernel of a shape, compiled if need be, as a function of the device's driver.

    Raises:
        ImportError: if cuda-bindings is not installed.
        CompileError: if the kernel cannot be compiled or loaded.
        OSError: if the cache folder cannot be written.
    """
    from cuda.bindings import driver

    major, minor = torch.cuda.get_device_capability(device)
    cubin = cached_cubin(cache_folder(), SOURCE, shape.definitions, f"sm_{major}{minor}")
    with torch.cuda.device(device):
        torch.cuda.current_stream()  # makes the device's context current
        status, module = driver.cuModuleLoadData(cubin)
        if not status.value:
            status, function = driver.cuModuleGetFunction(module, b"scan")
    if status.value:
        raise CompileError(f"the driver refuses the scan kernel: {status.name}")
    return function


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)

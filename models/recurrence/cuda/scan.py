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

from eigensweep.models.recurrence.cache import cache_folder
from eigensweep.models.recurrence.complex_reference import FORMS, PairedActivation
from eigensweep.models.recurrence.cuda.compiler import CompileError, load_cubin
from eigensweep.models.recurrence.paired import PairedSteps
from eigensweep.models.recurrence.steps import ACTIVATIONS, LEAK, Activation, Parameters, TorchSteps

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("scan.cu")

THREADS = 512
"""Threads of a block."""

KERNELS: tuple[Activation | PairedActivation, ...] = (*ACTIVATIONS, *FORMS)
"""What the kernel can be compiled for, in the order of its ACTIVATION."""

LARGEST = 512
"""Largest number n of units; for more, library products run step by step."""

CLUSTERS = ((192, 1), (256, 2), (320, 4), (LARGEST, 8))
"""Up to so many units, so many blocks share the matrix: then it fits into their registers."""

PAIRED_CLUSTERS = ((160, 1), *CLUSTERS[1:])
"""The same for units in pairs."""

ROWS = (1, 2, 4)
"""Rows of a batch that a cluster can run side by side."""

OLDEST = {1: (7, 0), 2: (9, 0)}
"""Compute capability that one block needs, and that more blocks than one need."""


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
    def definitions(self) -> dict[str, int]:
        """The macros that `scan.cu` is compiled with."""
        return {
            "N": self.units,
            "ROWS": self.rows,
            "CLUSTER": self.blocks,
            "BACKWARD": int(self.is_backward),
            "ACTIVATION": KERNELS.index(self.activation),
        }


def choose_shape(
    units: int,
    sequences: int,
    processors: int,
    *,
    is_backward: bool = False,
    activation: Activation | PairedActivation = "modrelu",
) -> ScanShape:
    """Return the shape for `sequences` rows, over all lanes, on so many multiprocessors.

    A cluster takes as few rows as let all clusters run at once, for a step of more rows is slower.

    >>> choose_shape(192, sequences=20, processors=132)
    ScanShape(units=192, rows=1, blocks=1, is_backward=False, activation='modrelu')
    >>> choose_shape(512, sequences=128, processors=132).rows
    4
    """
    blocks = count_blocks(units, is_paired=activation in FORMS)
    fitting = [rows for rows in ROWS if -(-sequences // rows) * blocks <= processors]
    return ScanShape(units, (fitting or ROWS[-1:])[0], blocks, is_backward, activation)


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

    def run_backward(self, G: Tensor, H: Tensor) -> None:
        run_scan(self.parameters, self.activation, G, H)


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

    Returns dL/db of each row of the batch, (M, B, n), of units in pairs; for others it is empty.
    """
    _, W, b, _, _ = parameters
    lanes, _, batch, _ = Y.shape
    is_backward, n = Y is not H, W.shape[-1]
    shape = choose_shape(
        n,
        lanes * batch,
        count_processors(W.device),
        is_backward=is_backward,
        activation=activation,
    )
    sums = W.new_empty(lanes, batch, n if is_backward and activation in FORMS else 0)
    launch(shape, Y, H, W.contiguous(), b.contiguous(), sums)
    return sums


def launch(shape: ScanShape, Y: Tensor, H: Tensor, W: Tensor, b: Tensor, sums: Tensor) -> None:
    """Run the kernel on the current stream. Within a lane all tensors are contiguous.

    Y and H are (M, steps + 1, B, row), W is (M, n, n), b is (M, n), `sums` as `run_scan` returns.
    """
    from cuda.bindings import driver

    lanes, times, batch, _ = Y.shape
    assert Y[0].is_contiguous()
    assert H[0].is_contiguous()
    kernel = load_kernel(shape, W.device.index or 0)
    pointers = (tensor.data_ptr() for tensor in (Y, H, W, b, sums))
    arguments = (*pointers, *(Y.stride(0), H.stride(0), times - 1, batch), *numbers_of(shape))
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


def numbers_of(shape: ScanShape) -> tuple[float, float, float, float]:
    """Return the numbers that the activation is computed with, in the order of the kernel."""
    if shape.activation == "smoothed_modrelu" or shape.activation == "shifted_modrelu":
        return (0.0, *FORMS[shape.activation])
    return LEAK, 0.0, 0.0, 0.0


def is_available(W: Tensor, activation: Activation | PairedActivation) -> bool:
    """Return whether the kernel can run with W; the first call for a size compiles it.

    It needs float32, at most `LARGEST` units, a GPU that is new enough, and cuda-bindings.
    """
    n = W.shape[-1]
    if not W.is_cuda or W.dtype != torch.float32 or n > LARGEST:
        return False
    return _is_compiled(n, activation, W.device.index or 0)


@functools.cache
def _is_compiled(units: int, activation: Activation | PairedActivation, device: int) -> bool:
    blocks = count_blocks(units, is_paired=activation in FORMS)
    try:
        if torch.cuda.get_device_capability(device) < OLDEST[min(blocks, 2)]:
            raise CompileError(f"{units} units need a GPU of compute capability 9.0 or newer")
        load_kernel(ScanShape(units, 1, blocks, False, activation), device)
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
    cubin = load_cubin(cache_folder(), SOURCE, shape.definitions, f"sm_{major}{minor}")
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

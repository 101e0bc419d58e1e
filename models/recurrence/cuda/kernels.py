"""Loads compiled kernels into a GPU's driver, and starts them within PyTorch's context and stream.

Loading is not allowed while a CUDA graph is captured. So what can be chosen for a network is loaded
together, at its first use.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from eigensweep.common.private_folders import cache_folder
from eigensweep.models.recurrence.cuda.compiler import CompileError, load_cubin

THREADS = 512
"""Threads of a block."""

ROWS = (1, 2, 4)
"""Rows of a batch that a cluster can run side by side, unless a source offers more."""

OLDEST = {1: (7, 0), 2: (9, 0)}
"""Compute capability that one block needs, and that more blocks than one need."""

Shape = TypeVar("Shape")

Definitions = tuple[tuple[str, int], ...]
"""The macros that a kernel is compiled with."""


def choose_rows(sequences: int, clusters: int, offered: Sequence[int] = ROWS) -> int:
    """Return how many rows of a batch a cluster takes, where so many clusters run at once.

    `sequences` are the rows of all lanes. Those that do not run at once run in several waves. By a
    model of a multiprocessor, which no GPU has confirmed yet, a step of r rows takes r + 1/2 times
    as long as one row adds.

    >>> choose_rows(20, clusters=132), choose_rows(128, clusters=16), choose_rows(640, 132, (4, 5))
    (1, 4, 5)
    """

    def cost(rows: int) -> tuple[int, int]:
        waves = -(-sequences // (rows * clusters))
        return waves * (2 * rows + 1), waves

    return min(offered, key=cost)


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def count_clusters(kernel: Any, blocks: int, device: int, shared_bytes: int = 0) -> int:
    """Return how many clusters of so many blocks of a kernel run at once.

    A cluster's blocks lie in one part of the chip, so that there are fewer than the multiprocessors
    would allow.
    """
    from cuda.bindings import driver

    processors = count_processors(torch.device("cuda", device))
    if blocks == 1:
        return processors
    launch = driver.CUlaunchConfig()
    launch.gridDimX, launch.blockDimX = processors // blocks * blocks, THREADS
    launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1
    launch.sharedMemBytes = shared_bytes
    with _in_context_of(device):
        status, *found = driver.cuOccupancyMaxActiveClusters(kernel, launch)
    return processors // blocks if status.value or not found[0] else int(found[0])


def count_shared_bytes(device: int) -> int:
    """Return how much shared memory a block can ask for."""
    from cuda.bindings import driver

    attribute = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    torch.cuda.init()  # type: ignore[no-untyped-call]
    return int(_answer(driver.cuDeviceGetAttribute(attribute, _answer(driver.cuDeviceGet(device)))))


def require_capability(device: int, blocks: int) -> None:
    """Raise CompileError if a GPU is too old for clusters of so many blocks."""
    oldest = OLDEST[min(blocks, 2)]
    if torch.cuda.get_device_capability(device) < oldest:
        raise CompileError(f"it needs a GPU of compute capability {oldest[0]}.{oldest[1]} or newer")


@functools.cache
def load_kernel(source: Path, definitions: Definitions, device: int, shared_bytes: int = 0) -> Any:
    """Return the kernel of a source, compiled if need be, as a function of the device's driver.

    The function has the source's name. It may be launched with so many bytes of dynamic shared
    memory.

    Raises:
        ImportError: if cuda-bindings is not installed.
        CompileError: if the kernel cannot be compiled or loaded.
        OutOfMemoryError: if the device has no memory for it now.
        RuntimeError: if a CUDA graph is being captured.
    """
    from cuda.bindings import driver

    refuse_in_capture(source)
    major, minor = torch.cuda.get_device_capability(device)
    cubin = load_cubin(cache_folder(), source, dict(definitions), f"sm_{major}{minor}")
    with _in_context_of(device):
        module = _answer(driver.cuModuleLoadData(cubin))
        function = _answer(driver.cuModuleGetFunction(module, source.stem.encode()))
        if shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _answer(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    return function


def refuse_in_capture(source: Path) -> None:
    """Raise RuntimeError if the current stream captures a CUDA graph."""
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"a kernel of {source.name} cannot be loaded while a CUDA graph is captured; run the "
            "network once before"
        )


def load_together(source: Path, load: Callable[[Shape], Any], shapes: Iterable[Shape]) -> None:
    """Load the kernels of a source for some shapes, compiled side by side.

    Raises:
        ImportError, CompileError, OutOfMemoryError, RuntimeError: as `load_kernel` does.
    """
    refuse_in_capture(source)  # here: another thread's stream captures nothing
    with ThreadPoolExecutor(thread_name_prefix="kernels") as pool:
        for _ in pool.map(load, shapes):
            pass


def launch_kernel(
    kernel: Any,
    device: torch.device,
    blocks: int,
    arguments: Sequence[Any],
    types: Sequence[Any],
    shared_bytes: int = 0,
) -> None:
    """Start a kernel of `load_kernel` on PyTorch's current stream.

    Raises:
        RuntimeError: if the driver refuses it.
    """
    from cuda.bindings import driver

    stream = torch.cuda.current_stream(device).cuda_stream
    given = (tuple(arguments), tuple(types))
    with _in_context_of(_number_of(device)):
        status, *_ = driver.cuLaunchKernel(
            kernel, blocks, 1, 1, THREADS, 1, 1, shared_bytes, stream, given, 0
        )
    if status.value:
        _raise_for_memory(status)
        raise RuntimeError(f"a kernel was not launched: {status.name}, {blocks} blocks")


def _number_of(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@contextmanager
def _in_context_of(device: int) -> Iterator[None]:
    """Make PyTorch's context of a device the current one, in whichever thread this is."""
    from cuda.bindings import driver

    _answer(driver.cuCtxPushCurrent(_context_of(device)))
    try:
        yield
    finally:
        driver.cuCtxPopCurrent()


@functools.cache
def _context_of(device: int) -> Any:
    from cuda.bindings import driver

    torch.cuda.init()  # type: ignore[no-untyped-call]
    return _answer(driver.cuDevicePrimaryCtxRetain(_answer(driver.cuDeviceGet(device))))


def _answer(returned: tuple[Any, ...]) -> Any:
    """Return the value of a call to the driver, without its status.

    Raises:
        OutOfMemoryError: if the device has no memory now; it may have some later.
        CompileError: if the status is another error.
    """
    status, *values = returned
    if status.value:
        _raise_for_memory(status)
        raise CompileError(f"the driver refuses a kernel: {status.name}")
    return values[0] if values else None


def _raise_for_memory(status: Any) -> None:
    if status.name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise torch.OutOfMemoryError("CUDA out of memory: the driver has none for a kernel")

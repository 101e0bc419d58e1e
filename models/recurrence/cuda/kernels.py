"""Loads compiled kernels into a GPU's driver, and starts them within PyTorch's context and stream.

Loading is not allowed while a CUDA graph is captured. So what can be chosen for a network is loaded
together, at its first use.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from eigensweep.models.recurrence.cache import cache_folder
from eigensweep.models.recurrence.cuda.compiler import CompileError, load_cubin

THREADS = 512
"""Threads of a block."""

ROWS = (1, 2, 4)
"""Rows of a batch that a cluster can run side by side."""

OLDEST = {1: (7, 0), 2: (9, 0)}
"""Compute capability that one block needs, and that more blocks than one need."""

Definitions = tuple[tuple[str, int], ...]
"""The macros that a kernel is compiled with."""


def choose_rows(sequences: int, blocks: int, processors: int) -> int:
    """Return how many rows of a batch a cluster of so many blocks takes.

    `sequences` are the rows of all lanes. A cluster takes as few as let all clusters run at once,
    for a step of more rows is slower.

    >>> choose_rows(20, blocks=1, processors=132), choose_rows(128, blocks=8, processors=132)
    (1, 4)
    """
    fitting = [rows for rows in ROWS if -(-sequences // rows) * blocks <= processors]
    return (fitting or ROWS[-1:])[0]


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


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
        OSError: if the cache folder cannot be written.
        RuntimeError: if a CUDA graph is being captured.
    """
    from cuda.bindings import driver

    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"a kernel of {source.name} cannot be loaded while a CUDA graph is captured; run the "
            "network once before"
        )
    major, minor = torch.cuda.get_device_capability(device)
    cubin = load_cubin(cache_folder(), source, dict(definitions), f"sm_{major}{minor}")
    with _in_context_of(device):
        module = _answer(driver.cuModuleLoadData(cubin))
        function = _answer(driver.cuModuleGetFunction(module, source.stem.encode()))
        if shared_bytes:
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _answer(driver.cuFuncSetAttribute(function, attribute, shared_bytes))
    return function


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
        CompileError: if the status is an error.
    """
    status, *values = returned
    if status.value:
        raise CompileError(f"the driver refuses a kernel: {status.name}")
    return values[0] if values else None

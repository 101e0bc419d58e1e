"""Whose fault an error is: a trial's, the memory's, or that of the machine below all of them."""

from __future__ import annotations

import traceback

import torch

NO_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
DEVICE_LOST = (
    "CUDA error:",
    "CUDA driver error",
    "CUDA unknown error",
    "CUDA_ERROR_",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "CUSOLVER_STATUS",
    "No CUDA GPUs are available",
    "no NVIDIA driver",
    "cudaGetDeviceCount",
    "c10/cuda/",
    "ATen/cuda/",
    "ATen/native/cuda/",
)
"""The last ones are files that PyTorch names where it finds its own state inconsistent."""


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether the device, or the machine, had no memory left."""
    return any(
        isinstance(each, torch.OutOfMemoryError | MemoryError)
        or (isinstance(each, RuntimeError) and any(words in str(each) for words in NO_MEMORY))
        for each in _causes(error)
    )


def is_of_the_device(error: BaseException) -> bool:
    """Tell whether the device is lost: nothing works on it until another process begins."""
    return not is_out_of_memory(error) and any(
        isinstance(each, torch.AcceleratorError)
        or (isinstance(each, RuntimeError) and any(words in str(each) for words in DEVICE_LOST))
        for each in _causes(error)
    )


def let_go(error: BaseException) -> None:
    """Drop what the functions that raised an error still hold: tensors of a device among it."""
    for each in _causes(error):
        traceback.clear_frames(each.__traceback__)


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = []
    each: BaseException | None = error
    while each is not None and each not in causes:
        causes.append(each)
        each = each.__cause__
    return causes

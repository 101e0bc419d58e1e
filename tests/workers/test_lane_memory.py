"""What lanes held goes with them, at once: the next ones may need the memory."""

from __future__ import annotations

import gc
import weakref
from contextlib import contextmanager

import pytest
import torch
from lanes import build, config_of

from eigensweep.training.errors import is_of_the_device, is_out_of_memory, let_go
from eigensweep.training.lanes.stacked.group import Group


@contextmanager
def without_collector():
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("static", [False, True])
def test_a_closed_group_leaves_no_tensor_as_garbage(static):
    training = build(config_of("scornn", training={"steps": 3, "evaluate_every": 2}))
    group = Group(training, 2, static=static)
    group.join(training)
    while not training.is_finished:
        group.advance(10.0)
    group.leave(training)
    program = group._program
    held = [weakref.ref(t) for t in (program._flat, program._results, *program._buffers.values())]
    with without_collector():
        del program
        group.close()
        assert [each() for each in held] == [None] * len(held)


def test_an_error_holds_no_tensors_of_what_raised_it():
    held = []

    def step():
        large = torch.zeros(8)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def train():
        try:
            step()
        except RuntimeError as error:
            raise ValueError("no program") from error

    with without_collector():
        try:
            train()
        except ValueError as error:
            assert held[0]() is not None
            let_go(error)
            assert held[0]() is None


@pytest.mark.parametrize(
    ("words", "is_memory"),
    [
        ("CUDA error: out of memory", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`", True),
        ("a kernel was not launched: CUDA_ERROR_OUT_OF_MEMORY, 20 blocks", True),
        ("a kernel was not launched: CUDA_ERROR_LAUNCH_FAILED, 20 blocks", False),
        ("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR", False),
        ("Unexpected error from cudaGetDeviceCount()", False),
        ('false INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1', False),
    ],
)
def test_a_full_memory_is_told_from_a_lost_device(words, is_memory):
    error = RuntimeError(words)
    assert (is_out_of_memory(error), is_of_the_device(error)) == (is_memory, not is_memory)

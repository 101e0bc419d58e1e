"""Captures of CUDA graphs that fail, on a PyTorch whose CUDA is played."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import torch

from eigensweep.training.errors import is_of_the_device, is_out_of_memory
from eigensweep.training.lanes.stacked import graphs

ASSERTION = (
    'captures_underway.empty() INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator'
    '.cpp":3071, please report a bug to PyTorch.'
)
FORBIDDEN = "CUDA error: operation not permitted when stream is capturing"


class Stream:
    def __init__(self, device):
        self.device, self.capturing = device, None

    def wait_stream(self, other):
        assert other.device == self.device


class PlayedCuda:
    """Two devices of a PyTorch 2.11: where the driver ends a capture with an error, PyTorch's
    allocator is not told that it is over."""

    def __init__(self):
        self.device, self.made, self.lost = 0, [], None
        self.current = [Stream(0), Stream(1)]
        self.first = list(self.current)
        self.underway, self.released = set(), []
        self.fails = None
        """The error of the next end of a capture."""

    def work(self, device):
        """Do some work on a device: it is recorded where the device's stream captures."""
        graph = self.current[device].capturing
        if graph is not None:
            graph.nodes += 1

    @contextmanager
    def on(self, device):
        before, self.device = self.device, device
        try:
            yield
        finally:
            self.device = before

    @contextmanager
    def within(self, stream):
        before, self.current[stream.device] = self.current[stream.device], stream
        try:
            yield
        finally:
            self.current[stream.device] = before

    def make_stream(self, device=None):
        stream = Stream(self.device if device is None else getattr(device, "index", device))
        self.made.append(stream)
        return stream

    def find_current(self, device=None):
        return self.current[self.device if device is None else getattr(device, "index", device)]

    def synchronize(self, device=None):
        if self.lost is not None:
            raise RuntimeError(self.lost)

    def empty_cache(self):
        self.synchronize()
        if self.underway:
            raise RuntimeError(ASSERTION)

    def end_allocation(self, device, pool):
        if (device, pool) not in self.underway:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.underway.remove((device, pool))

    def make_graph(self):
        played = self

        class Graph:
            nodes = 0

            def capture_begin(self, pool=(0, 1), capture_error_mode="global", **more):
                self.device, self.pool = played.device, pool
                played.underway.add((self.device, pool))
                self.stream = played.current[self.device]
                self.stream.capturing = self

            def capture_end(self):
                self.stream.capturing = None
                if played.fails is not None:
                    raise played.fails
                played.underway.remove((self.device, self.pool))

        return Graph()


@pytest.fixture
def cuda(monkeypatch):
    played = PlayedCuda()
    for name, value in {
        "Stream": played.make_stream,
        "CUDAGraph": played.make_graph,
        "device": played.on,
        "stream": played.within,
        "current_stream": played.find_current,
        "current_device": lambda: played.device,
        "synchronize": played.synchronize,
        "empty_cache": played.empty_cache,
        "graph_pool_handle": lambda: (0, 7),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    for name, value in {
        "_cuda_endAllocateToPool": played.end_allocation,
        "_cuda_releasePool": lambda device, pool: played.released.append((device, pool)),
        "_host_emptyCache": lambda: None,
    }.items():
        monkeypatch.setattr(torch._C, name, value, raising=False)
    monkeypatch.setattr(torch.cuda.graph, "default_capture_stream", None)
    graphs._side_stream.cache_clear()
    yield played
    graphs._side_stream.cache_clear()


FIRST = torch.device("cuda", 0)


def test_work_of_another_device_is_in_its_graph(cuda):
    graph = graphs.capture(lambda: cuda.work(1), torch.device("cuda", 1), "a step")
    assert graph.nodes == 1
    assert cuda.device == 0


def test_all_captures_of_a_device_share_one_stream(cuda):
    for _ in range(3):
        assert graphs.capture(lambda: cuda.work(0), FIRST, "a step") is not None
    assert len(cuda.made) == 1


@pytest.mark.parametrize("where", ["in the work", "at its end"])
def test_a_capture_that_fails_leaves_stream_and_allocator(cuda, caplog, where):
    calls = []

    def act():
        calls.append(1)
        if where == "in the work" and len(calls) > graphs.WARM_UPS:
            raise RuntimeError(FORBIDDEN)

    cuda.fails = RuntimeError("CUDA error: operation failed due to a previous error")
    with caplog.at_level(logging.WARNING):
        assert graphs.capture(act, FIRST, "a training step") is None
    assert cuda.current == cuda.first
    torch.cuda.empty_cache()
    assert cuda.released == [(0, (0, 7))]
    assert "a training step runs without a CUDA graph reason=CUDA error" in caplog.text


def test_no_memory_for_a_graph_is_no_memory(cuda):
    cuda.fails = torch.AcceleratorError("CUDA error: out of memory")
    with pytest.raises(RuntimeError) as caught:
        graphs.capture(lambda: None, FIRST, "a step")
    assert is_out_of_memory(caught.value)
    torch.cuda.empty_cache()


def test_a_device_that_is_lost_in_a_capture_is_lost(cuda):
    def act():
        cuda.lost = "CUDA error: an illegal memory access was encountered"
        raise RuntimeError(cuda.lost)

    with pytest.raises(RuntimeError, match="illegal memory access") as caught:
        graphs.capture(act, FIRST, "a step")
    assert is_of_the_device(caught.value)


def test_an_allocator_that_stays_inconsistent_loses_the_device(cuda, monkeypatch):
    def refuse(device, pool):
        raise RuntimeError("no such function")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", refuse)
    cuda.fails = RuntimeError("CUDA error: operation failed due to a previous error")
    with pytest.raises(RuntimeError, match="INTERNAL ASSERT") as caught:
        graphs.capture(lambda: None, FIRST, "a step")
    assert is_of_the_device(caught.value)

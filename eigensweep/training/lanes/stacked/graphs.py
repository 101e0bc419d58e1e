"""CUDA graphs: work with fixed shapes is captured once and replayed without Python."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from eigensweep.training.errors import is_out_of_memory, let_go

logger = logging.getLogger(__name__)

WARM_UPS = 3
"""So often work runs before it is captured: kernels are compiled and libraries are set up."""


def capture(
    act: Callable[[], None], device: torch.device, what: str, *, pool: Any = None
) -> torch.cuda.CUDAGraph | None:
    """Return `act` as a CUDA graph; None where that fails, and one line in the log says why.

    `act` runs some times before, and what it changed then is for the caller to undo. Graphs may
    share a memory `pool` if none leaves anything there that is read after its replay.

    Raises:
        RuntimeError: if there is no memory for it, or if the device is of no use afterwards.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    with torch.cuda.device(index):  # on another one the graph would stay empty
        side = _side_stream(index)
        pool = torch.cuda.graph_pool_handle() if pool is None else pool
        try:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    act()
            torch.cuda.current_stream().wait_stream(side)
            return _capture(act, side, pool)
        except RuntimeError as error:
            let_go(error)
            _free(index, pool)
            if is_out_of_memory(error):
                raise
            # Both raise if the device is lost: then no other work goes on, either.
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            reason = str(error).splitlines()[0]
            logger.warning("%s runs without a CUDA graph reason=%s", what, reason)
            return None


def _capture(act: Callable[[], None], side: torch.cuda.Stream, pool: Any) -> torch.cuda.CUDAGraph:
    """Capture on a stream, which is no longer the current one afterwards, whatever happens.

    With `torch.cuda.graph` it stays so after a capture that failed.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        # Other threads pin memory meanwhile.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            act()
        finally:
            graph.capture_end()
    return graph


def _free(device: int, pool: Any) -> None:
    """Tell PyTorch's allocator that a capture is over which has failed.

    PyTorch before 2.12 forgets that where the driver ends the capture with an error. All later
    memory would come from the pool, and `torch.cuda.empty_cache` would find an inconsistency.
    """
    with suppress(RuntimeError):  # it has been told
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)


@functools.cache
def _side_stream(device: int) -> torch.cuda.Stream:
    """Return the one stream of a device for captures: each has a workspace of cuBLAS for good."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

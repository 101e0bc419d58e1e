"""CUDA graphs: work with fixed shapes is captured once and replayed without Python."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

logger = logging.getLogger(__name__)

WARM_UPS = 3
"""So often work runs before it is captured: kernels are compiled and libraries are set up."""


def capture(
    act: Callable[[], None], device: torch.device, what: str, *, pool: Any = None
) -> torch.cuda.CUDAGraph | None:
    """Return `act` as a CUDA graph; None where that fails, and one line in the log says why.

    `act` runs some times before, and what it changed then is for the caller to undo. Graphs may
    share a memory `pool` if none leaves anything there that is read after its replay.
    """
    try:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                act()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        graph = torch.cuda.CUDAGraph()
        # Other threads pin memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            act()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        logger.warning("%s runs without a CUDA graph reason=%s", what, reason)
        return None
    return graph

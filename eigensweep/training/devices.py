"""Whether a process can use the device that it was given: tried once, before it trains.

A device that cannot be used is the node's fault, never a trial's. Whether an error in the middle of
a training is the device's or the trial's own nobody can tell from its words: a kernel that reads
beyond its bounds and a card that fell off the bus end alike. So the trial goes elsewhere, and the
next process on that node tries the device out.

Importing this loads no torch.
"""

from __future__ import annotations

import os
import platform
import sys
from functools import cache

SIDE = 8
"""Rows of the matrix that is multiplied: its numbers, and their products, are exact everywhere."""

OWN_BYTES = 2 << 30
"""What a process holds on a device beside its tensors, at most: its context, its kernels, and the
workspaces of libraries."""

SLACK = 0.05
"""The part of a device that its neighbours may hold beyond theirs."""


class DeviceError(RuntimeError):
    """A device cannot be used. The node's fault: its trials go elsewhere."""


def see_only(gpu: str | None) -> None:
    """Let this process see one GPU, by the id that Ray gave; None: none. Nothing uses CUDA yet.

    Ray itself leaves that out if RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set. It counts GPUs
    as nvidia-smi does; CUDA by itself would count the fastest one first.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu or ""
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@cache
def try_out(device: str) -> None:
    """Allocate on a device, multiply there and compare; what went well once is not tried again.

    Raises:
        DeviceError: if it cannot be used.
    """
    if device == "cpu":
        return
    try:
        product, expected = _multiply(device), _multiply("cpu")
    except (RuntimeError, AssertionError) as error:  # the second: PyTorch has no CUDA
        raise DeviceError(_explain(device, f"{type(error).__name__}: {error}")) from error
    if product != expected:
        raise DeviceError(_explain(device, "the product of two matrices is wrong there"))


def find_crowding(device: str, share: float) -> str | None:
    """Return how other processes fill a device of which this one has a share; None: they do not.

    Ask it after an allocation has failed.
    """
    torch = sys.modules.get("torch")
    if device == "cpu" or torch is None:
        return None
    try:
        free, total = torch.cuda.mem_get_info(device)
        own = torch.cuda.memory_reserved(device) + OWN_BYTES
    except (RuntimeError, AssertionError):
        return None
    others = total - free - own
    if others <= (1 - min(share, 1.0) + SLACK) * total:
        return None
    return (
        f"{device} on {platform.node()} has no memory left, because other processes hold "
        f"{others / 1e9:.1f} of its {total / 1e9:.1f} GB. See which with nvidia-smi, and end them"
    )


def _multiply(device: str) -> list[list[float]]:
    import torch

    numbers = torch.arange(float(SIDE * SIDE), device=device).reshape(SIDE, SIDE)
    product: list[list[float]] = (numbers @ numbers).tolist()
    return product


def _explain(device: str, reason: str) -> str:
    return (
        f"PyTorch cannot use {device}, which this node offers to trials: {reason}. See whether "
        "nvidia-smi and torch.cuda.is_available() work there, or let the node join with "
        "--num-gpus=0"
    )

"""A guard for tests: what a GPU repeats as a whole must not wait for the host."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITING = (
    "_local_scalar_dense",
    "_linalg_check_errors",
    "eig",
    "svd",
    "matrix_exp",
    "nonzero",
    "unique",
    "masked_select",
    "bincount",
    "repeat_interleave",
)
"""Parts of names of operations that read a value, or whose CUDA form does."""


class NoHost(TorchDispatchMode):
    """Refuses operations that make the host wait for a device, or that copy between the two."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        name = func.name()
        if any(part in name for part in WAITING):
            raise AssertionError(f"{name} waits for the device")
        if name.startswith("aten::index") and any(t.dtype == torch.bool for t in given[1:]):
            raise AssertionError(f"{name} counts the true entries of a mask")
        results = [t for t in tree_leaves(made) if isinstance(t, torch.Tensor)]
        # A number times a lane's own scalar comes as a tensor on the CPU, without dimensions. A
        # kernel takes it as an argument, but some operations copy it to the device and wait.
        of_numbers = name in ("aten::mul.Tensor", "aten::div.Tensor", "aten::_to_copy")
        on_host = [t for t in (*given, *results) if t.device.type == "cpu"]
        copied = name == "aten::_to_copy" and len({t.device for t in given + results}) > 1
        if copied or any(t.dim() or not of_numbers for t in on_host):
            raise AssertionError(f"{name} is not on the device")
        return made

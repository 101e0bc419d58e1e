"""PyTorch's optimizers without its compiler, which nothing here uses.

PyTorch's optimizers import its compiler only to opt out of it, which takes two seconds of a
process's start, and memory. The update rules here are PyTorch's own. If a later version imports the
compiler in another way, it is loaded again, and nothing else changes.
"""

from __future__ import annotations

from inspect import unwrap
from typing import Any

import torch
from torch import optim
from torch.optim.optimizer import Optimizer


class Adam(optim.Adam):
    """PyTorch's own."""

    step = torch.no_grad()(unwrap(optim.Adam.step))


class AdamW(optim.AdamW):
    """PyTorch's own."""

    step = torch.no_grad()(unwrap(optim.AdamW.step))


class SGD(optim.SGD):
    """PyTorch's own."""

    step = torch.no_grad()(unwrap(optim.SGD.step))


class RMSprop(optim.RMSprop):
    """PyTorch's own."""

    step = torch.no_grad()(unwrap(optim.RMSprop.step))


class Adagrad(optim.Adagrad):
    """PyTorch's own."""

    step = torch.no_grad()(unwrap(optim.Adagrad.step))


def leave_compiler_out() -> None:
    """Let what all optimizers share be called without the compiler, before the first is made."""
    for function in (Optimizer.add_param_group, Optimizer.state_dict, Optimizer.load_state_dict):
        own: Any = unwrap(function)
        own.__dynamo_disable = own  # where PyTorch keeps what the compiler makes of it

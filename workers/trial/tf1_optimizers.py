"""Update rules as TensorFlow 1 had them, for papers whose programs ran on it.

They differ from PyTorch's in where their sums begin and where epsilon stands. A sum that begins at
1 makes the first steps small: with gradients of size g until about ln(g²) / ln(decay) have passed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.adagrad import Adagrad
from torch.optim.optimizer import Optimizer

EPSILON = 1e-10
FIRST_SUM = 0.1


class RMSpropTF1(Optimizer):
    """v ← α v + (1 - α) g², u ← μ u + lr g / sqrt(v + 1e-10), w ← w - u, from v = 1 and u = 0.

    The learning rate is inside the momentum u, where a change of the rate reaches it late.
    `weight_decay` adds its multiple of w to g. Source: TensorFlow 1, `RMSPropOptimizer`.
    """

    def __init__(
        self, params: Any, lr: float, alpha: float, momentum: float = 0.0, weight_decay: float = 0.0
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients that the parameters hold."""
        for group in self.param_groups:
            lr, alpha, momentum = group["lr"], group["alpha"], group["momentum"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad.add(w, alpha=group["weight_decay"]) if group["weight_decay"] else w.grad
                memory = self.state[w]
                if not memory:
                    memory["v"] = torch.ones_like(w)
                    if momentum:
                        memory["u"] = torch.zeros_like(w)
                v = memory["v"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
                root = v.add(EPSILON).sqrt_()
                if momentum:
                    w.sub_(memory["u"].mul_(momentum).addcdiv_(g, root, value=lr))
                else:
                    w.addcdiv_(g, root, value=-lr)


def adagrad_tf1(params: Any, fused: bool | None = None) -> Adagrad:
    """Return the optimizer v ← v + g², w ← w - lr g / sqrt(v), from v = 0.1.

    Source: TensorFlow 1, `AdagradOptimizer`.
    """
    return Adagrad(params, initial_accumulator_value=FIRST_SUM, eps=0.0, fused=fused)

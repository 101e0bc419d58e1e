"""Update rules as TensorFlow 1 and the uRNN's program had them, for papers that ran on these.

They differ from PyTorch's in where their sums begin and where epsilon stands. A sum that begins at
1 makes the first steps small: with gradients of size g until about ln(g²) / ln(decay) have passed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from eigensweep.training.optimizers.plain_optimizers import Adagrad

EPSILON = 1e-10
FIRST_SUM = 0.1
URNN_FIRST_MEAN = 1e-3
"""The mean of squares with which the uRNN's RMSprop begins."""
URNN_EPSILON = 1.2e-38
"""It has none. This one changes no step, and keeps 0 / 0 away where a gradient stays zero for long.
"""
ADAM_EPSILON = 1e-8


class RMSpropFrom(Optimizer):
    """v ← α v + (1 - α) g², u ← μ u + lr g / sqrt(v + ε), w ← w - u, from a given v and u = 0.

    The learning rate is inside the momentum u, where a change of the rate reaches it late.
    `weight_decay` adds its multiple of w to g. Source: with v = 1 and ε = 1e-10 TensorFlow 1,
    `RMSPropOptimizer`; with v = 1e-3 and no ε the program of Arjovsky, Shah & Bengio, ICML 2016.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        alpha: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        first: float = 1.0,
        eps: float = EPSILON,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "first": first, "eps": eps})

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
                    memory["v"] = torch.full_like(w, group["first"])
                    if momentum:
                        memory["u"] = torch.zeros_like(w)
                v = memory["v"].mul_(alpha).addcmul_(g, g, value=1 - alpha)
                root = v.add(group["eps"]).sqrt_()
                if momentum:
                    w.sub_(memory["u"].mul_(momentum).addcdiv_(g, root, value=lr))
                else:
                    w.addcdiv_(g, root, value=-lr)


def adagrad_tf1(params: Any, fused: bool | None = None) -> Adagrad:
    """Return the optimizer v ← v + g², w ← w - lr g / sqrt(v), from v = 0.1.

    Source: TensorFlow 1, `AdagradOptimizer`.
    """
    return Adagrad(params, initial_accumulator_value=FIRST_SUM, eps=0.0, fused=fused)


class AdamTF1(Optimizer):
    """m ← β₁ m + (1 - β₁) g, v ← β₂ v + (1 - β₂) g², w ← w - r m / (sqrt(v) + 1e-8).

    r is lr sqrt(1 - β₂ᵗ) / (1 - β₁ᵗ) at step t: epsilon counts for more in the first steps than in
    PyTorch's Adam, which corrects sqrt(v) before it adds it. Source: TensorFlow 1, `AdamOptimizer`.
    """

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step with the gradients that the parameters hold."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                g = w.grad.add(w, alpha=group["weight_decay"]) if group["weight_decay"] else w.grad
                memory = self.state[w]
                if not memory:
                    memory["step"] = torch.tensor(0.0)
                    memory["m"], memory["v"] = torch.zeros_like(w), torch.zeros_like(w)
                memory["step"] += 1
                t = memory["step"].item()
                m = memory["m"].lerp_(g, 1 - beta1)
                v = memory["v"].mul_(beta2).addcmul_(g, g, value=1 - beta2)
                rate = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)
                w.addcdiv_(m, v.sqrt().add_(ADAM_EPSILON), value=-rate)

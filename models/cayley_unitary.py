"""An optimizer whose steps keep unitary matrices unitary.

Source: Wisdom, Powers, Hershey, Le Roux & Atlas, NeurIPS 2016, section 3; the scaled gradient and
its constants are those of their program for MNIST.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from eigensweep.models.matrices.orthogonal import orthogonality_error, reorthogonalise, solve

LARGEST_ERROR = 1e-4
"""Beyond this max |W*W - I| the nearest unitary matrix takes W's place."""
PROJECT_EVERY = 1000
"""Steps after which it does so in any case."""


class CayleyUnitary(Optimizer):
    """W ← (I + λ/2 S)⁻¹ (I - λ/2 S) W with S = G W* - W G* and G = ∂L/∂Re W + i ∂L/∂Im W.

    A parameter is (..., 2, n, n), real and imaginary part of W. With `natgrad_rms` both parts of G
    are divided by the root of a running mean of their squares. The shape in front of a parameter
    may be that of lanes; `lr` may then be a tensor of this shape.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        *,
        natgrad_rms: bool = False,
    ) -> None:
        # `capturable`: a checkpoint's step counts are loaded to the device of the parameters.
        super().__init__(params, {"lr": lr, "natgrad_rms": natgrad_rms, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient; `closure` is not for this optimizer."""
        if closure is not None:
            raise ValueError("CayleyUnitary takes one gradient a step; call step() without closure")
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._move(p, group["lr"], group["natgrad_rms"])

    def _move(self, p: Tensor, lr: float | Tensor, natgrad_rms: bool) -> None:
        state, gradient = self.state[p], p.grad
        assert gradient is not None
        if not state:
            state["step"] = torch.zeros(p.shape[:-3], device=p.device)
            if natgrad_rms:
                state["mean_square"] = torch.zeros_like(p)
        state["step"] += 1
        if natgrad_rms:
            state["mean_square"].mul_(0.9).addcmul_(gradient, gradient, value=0.1)
            gradient = gradient / (state["mean_square"].sqrt() + 1e-8)
        W = move(torch.complex(*p.unbind(-3)), torch.complex(*gradient.unbind(-3)), lr)
        drifted = orthogonality_error(W) > LARGEST_ERROR
        drifted |= state["step"] % PROJECT_EVERY == 0
        if p.device.type != "cpu" or drifted.any():  # elsewhere, to ask waits for the device
            W = torch.where(drifted[..., None, None], reorthogonalise(W), W)
        p.copy_(torch.stack((W.real, W.imag), -3))


def move(W: Tensor, G: Tensor, lr: float | Tensor) -> Tensor:
    """Return W after a step against the gradient G, both complex (..., n, n), `lr` (...) or one.

    >>> W, G = torch.ones(1, 1) + 0j, torch.tensor([[2j]])
    >>> move(W, G, 0.1).angle().neg().mul(1e4).round().item()  # 2 atan(0.1 · 2)
    3948.0
    """
    GWh = G @ W.mH
    if isinstance(lr, Tensor):
        lr = lr[..., None, None]
    half = lr / 2 * (GWh - GWh.mH)
    eye = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    return solve(eye + half, W - half @ W)

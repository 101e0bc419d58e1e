"""The fast GORU recurrence, read out as V h_t + c, with its own backward pass."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from eigensweep.models.recurrence.checks import check_each, check_input
from eigensweep.models.recurrence.gated_function import GatedHow, run_gated
from eigensweep.models.recurrence.gated_steps import GRUSteps
from eigensweep.models.recurrence.native_gated import GORU, NativeGatedSteps, is_available


def goru(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    threshold: Tensor,
    V: Tensor,
    c: Tensor,
    *,
    readout: Literal["all", "last"] = "all",
    h0: Tensor,
    chunk: int | None = None,
    backend: Literal["torch", "native"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (logits, last h): V h_t + c at every step, (τ, B, p), or at the last one, (B, p).

    U is (3n, m) and R (3n, n), in the order r, z, candidate, R's last rows the rotation W; b is
    (2n,), of the gates, and the threshold of modReLU (n,). x is int64 (τ, B), symbols in place of
    one-hot vectors, or float (τ, B, m); h0 is (B, n). `chunk` and `backend` are those of
    `gated`. First derivatives only: for a second one `goru_reference` has the
    same function in plain PyTorch.

    Raises:
        ValueError: if shapes, dtypes or devices do not fit one another.
    """
    _check(x, U, R, b, threshold, V, c, h0)
    native = backend != "torch" and is_available(R)
    if backend == "native" and not native:
        raise ValueError(
            "the native recurrence needs float32 or float64 on a CPU and a C++ compiler; "
            f"R is {R.dtype} on {R.device}"
        )
    steps = NativeGORUSteps if native else GORUSteps
    how = GatedHow(steps, 0, readout, chunk, keep=torch.is_grad_enabled())
    b = torch.cat((b, torch.zeros_like(threshold)))
    logits, (h,) = run_gated(how, x, U, b, V, c, (R, threshold), (h0,))
    return logits, h


class GORUSteps(GRUSteps):
    """r, z, the candidate and W h are kept. Weights: R and modReLU's threshold."""

    def squash(self, z: Tensor) -> None:
        sign = z.sign()
        z.abs_().add_(self.weights[1].unsqueeze(1)).relu_().mul_(sign)

    def slope(self, candidate: Tensor) -> Tensor:
        return (candidate != 0).to(candidate.dtype)

    def add_weight_gradients(self, G: Tensor, S: Tensor, A: Tensor) -> None:
        super().add_weight_gradients(G, S, A)
        of_candidate = self.columns(G, 2) * self.columns(A, 2).sign()
        self.sums[3].add_(of_candidate[..., : self.n].sum((1, 2)))


class NativeGORUSteps(NativeGatedSteps, GORUSteps):
    """The same as compiled loops."""

    cell = GORU

    def packed_forward(self) -> tuple[Tensor, Tensor | None]:
        return super().packed_forward()[0], self.spread(self.weights[1], 1).contiguous()


def _check(
    x: Tensor,
    U: Tensor,
    R: Tensor,
    b: Tensor,
    threshold: Tensor,
    V: Tensor,
    c: Tensor,
    h0: Tensor,
) -> None:
    check_input(x, "R", R)
    n, m, p = R.shape[-1], (x.shape[2] if x.is_floating_point() else U.shape[-1]), len(V)
    check_each(
        "R",
        R,
        U=(U, (3 * n, m)),
        R=(R, (3 * n, n)),
        b=(b, (2 * n,)),
        threshold=(threshold, (n,)),
        V=(V, (p, n)),
        c=(c, (p,)),
        h0=(h0, (x.shape[1], n)),
    )

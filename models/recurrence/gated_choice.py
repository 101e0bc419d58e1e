"""What runs the loop over time of a gated recurrence: compiled steps, a kernel, or PyTorch."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from eigensweep.models.recurrence.cuda import gated as cuda_gated
from eigensweep.models.recurrence.gated_steps import GatedSteps
from eigensweep.models.recurrence.native.gated import NATIVE, SOURCE
from eigensweep.models.recurrence.native.library import use_native

Backend = Literal["torch", "native", "cuda"]
"""PyTorch, compiled steps on a CPU, or a kernel on an NVIDIA GPU."""


def choose_steps(
    steps: type[GatedSteps], weights: tuple[Tensor, ...], backend: Backend | None
) -> type[GatedSteps]:
    """Return the form of `steps` asked for, by default the fastest that can run with the weights.

    `weights` are R and the other weights of the cell.

    Raises:
        ValueError: if the backend asked for cannot run here.
    """
    R = weights[0]
    if use_native(SOURCE, backend, R=R):
        return NATIVE[steps]
    if backend in (None, "cuda") and cuda_gated.is_available(steps, weights):
        return cuda_gated.CUDA[steps]
    if backend == "cuda":
        most, _ = cuda_gated.CLUSTERS[cuda_gated.cell_of(steps, len(weights))][-1]
        raise ValueError(
            f"the CUDA kernel needs float32, at most {most} units, a GPU and cuda-bindings; "
            f"R is {R.dtype} {tuple(R.shape)} on {R.device}"
        )
    return steps

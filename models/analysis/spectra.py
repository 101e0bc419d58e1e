"""Eigenvalues and singular values of what carries a state to the next."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eigensweep.models.base import Model


@dataclass(frozen=True)
class Spectrum:
    """Of one matrix. Both are sorted, the largest modulus first."""

    eigenvalues: Tensor
    """(n,) complex."""
    singular_values: Tensor
    """(n,) real."""


def spectrum(W: Tensor) -> Spectrum:
    """Return the eigenvalues and singular values of W, (n, n), in double precision on the CPU.

    >>> spectrum(torch.tensor([[0.0, 2.0], [-0.5, 0.0]])).eigenvalues.abs().tolist()
    [1.0, 1.0]

    Raises:
        ValueError: if W is not square or not finite.
    """
    if W.dim() != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"a spectrum is of a square matrix; this one is {tuple(W.shape)}")
    if not bool(torch.isfinite(torch.view_as_real(W) if W.is_complex() else W).all()):
        raise ValueError("the matrix is not finite, so it has no spectrum")
    W = W.detach().cpu().to(torch.complex128 if W.is_complex() else torch.float64)
    eigenvalues = torch.linalg.eigvals(W)
    order = eigenvalues.abs().argsort(descending=True, stable=True)
    return Spectrum(eigenvalues[order], torch.linalg.svdvals(W))


def recurrent_spectra(model: Model) -> dict[str, Spectrum]:
    """Return the spectrum of W and, where the state has several parts, of each part's own block.

    Raises:
        ValueError: if the model has no square recurrent matrix: a gated one has one a gate.
    """
    with torch.no_grad():
        W = model.recurrent_matrix()
    if W.shape != (model.hidden_size,) * 2:
        raise ValueError(
            f"{model.config.name} has no one matrix that carries its state: its recurrent matrix "
            f"is {tuple(W.shape)} for {model.hidden_size} units"
        )
    blocks = model.state_blocks()
    whole = {"whole": spectrum(W)}
    if len(blocks) == 1:
        return whole
    return whole | {name: spectrum(W[block, block]) for name, block in blocks.items()}

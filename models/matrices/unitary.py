"""The unitary matrix of restricted uRNN: diagonals, reflections and Fourier transforms.

Source: Arjovsky, Shah & Bengio, "Unitary Evolution Recurrent Neural Networks", ICML 2016, sec. 4.
"""

from __future__ import annotations

from math import pi

import torch
from torch import Tensor

from eigensweep.models.matrices.initial import draw, uniform


def restricted_product(theta: Tensor, v: Tensor, permutation: Tensor) -> Tensor:
    """Return W = D₃ R₂ F⁻¹ D₂ Π R₁ F D₁, complex (n, n), unitary whatever the parameters are.

    D_k = diag(e^{iθ_k}) with θ (3, n), R_k = I - 2 v_k v_k* / |v_k|² with v (2, 2n), each row the
    real and then the imaginary parts, F the unitary DFT, and (Π h)_j = h_{permutation[j]}.

    >>> theta, v = torch.zeros(3, 1), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> restricted_product(theta, v, torch.tensor([0])).real.round().tolist()  # two reflections
    [[1.0]]
    """
    D1, D2, D3 = torch.complex(theta.cos(), theta.sin()).unbind(-2)
    v1, v2 = torch.complex(*v.chunk(2, -1)).unbind(-2)
    X = torch.fft.fft(D1.diag_embed(), dim=-2, norm="ortho")
    X = reflect(X, v1).index_select(-2, permutation)
    X = torch.fft.ifft(D2.unsqueeze(-1) * X, dim=-2, norm="ortho")
    return D3.unsqueeze(-1) * reflect(X, v2)


def reflect(X: Tensor, v: Tensor) -> Tensor:
    """Return (I - 2 v v* / |v|²) X for X (n, k) and v (n,), complex."""
    square = (v.real.square() + v.imag.square()).sum(-1)
    seen = (v.conj().unsqueeze(-2) @ X) / square
    return X - 2 * v.unsqueeze(-1) * seen


def initial_factors(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw θ, v and the permutation of `restricted_product` as the published program does."""
    return uniform(3, n, pi), draw(2, 2 * n, "glorot_uniform"), torch.randperm(n)

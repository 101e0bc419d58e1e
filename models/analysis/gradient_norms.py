"""How strongly each state depends on each input: the heat maps of ‖∂h_τ / ∂x_t‖.

Source: Helfrich & Ye, AAAI 2020, section 6.1, figures 4 and 5, and Theorem 3.1. The paper does not
say how a batch becomes one picture; here norms are taken for each sequence.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from eigensweep.models.base import Model

Norm = Literal["spectral", "frobenius"]

MOST_ENTRIES = 20_000_000
"""Entries of the derivatives that are held at a time."""


def gradient_norms(model: Model, x: Tensor, norm: Norm = "spectral") -> dict[str, Tensor]:
    """Return ‖∂h_τ / ∂x_t‖ for each part of the state, (τ, τ, B): row τ, column t, sequence.

    x is as the model takes it, (τ, B) symbols or (τ, B, m) values; a symbol is differentiated as
    its one-hot vector. Entries above the diagonal are zero: no state depends on a later input. The
    norm is that of the (part's units) x m Jacobian of each sequence; a complex unit counts as its
    two real parts. The parts are those of `Model.state_blocks`.

    Raises:
        ValueError: if the model does not take one-hot vectors in the place of symbols.
    """
    blocks = model.state_blocks()
    values = as_values(model, x)
    columns: dict[str, list[Tensor]] = {name: [] for name in blocks}
    for J in _jacobians(model, values):
        for name, block in blocks.items():
            columns[name].append(matrix_norms(J[..., block], norm))
    return {name: torch.cat(found, dim=1) for name, found in columns.items()}


def as_values(model: Model, x: Tensor) -> Tensor:
    """Return x as numbers that a derivative can be taken by: symbols become one-hot vectors."""
    dtype = next(t.dtype for t in model.state_dict().values() if t.is_floating_point())
    if x.is_floating_point():
        return x.to(dtype)
    values = one_hot(x, model.shapes.input_size).to(dtype)
    with torch.no_grad():
        try:
            agrees = torch.allclose(model.states(values), model.states(x), rtol=1e-4, atol=1e-6)
        except (RuntimeError, IndexError, TypeError):
            agrees = False
    if not agrees:
        raise ValueError(
            f"{type(model).__name__} does not take one-hot vectors in the place of symbols, so its "
            "states have no derivative by them; look at a task whose input is values"
        )
    return values


def _jacobians(model: Model, x: Tensor) -> Iterator[Tensor]:
    """Yield ∂h_τ / ∂x_t for some t at a time, (τ, t, B, m, n): forward derivatives."""
    steps, batch, features = x.shape
    size = steps * batch * features * model.hidden_size
    at_a_time = max(1, MOST_ENTRIES // size)

    def along(direction: Tensor) -> Tensor:
        every = direction.unsqueeze(1).expand_as(x)
        return torch.func.jvp(model.states, (x,), (every,))[1]

    units = torch.eye(steps * features, dtype=x.dtype).reshape(-1, steps, features)
    for first in range(0, steps, at_a_time):
        last = min(steps, first + at_a_time)
        with torch.no_grad(), warnings.catch_warnings():
            # Loading its rules of forward derivatives, torch warns of torch.jit, once.
            warnings.simplefilter("ignore", DeprecationWarning)
            J = torch.func.vmap(along)(units[first * features : last * features])
        J = J.reshape(last - first, features, *J.shape[1:])
        yield J.permute(2, 0, 3, 1, 4)


def matrix_norms(J: Tensor, norm: Norm) -> Tensor:
    """Return the norm of each of many small matrices, (..., m, n) to (...).

    The spectral norm is the root of the largest eigenvalue of the smaller Gram matrix, whose
    relative error is that of one rounding.

    >>> matrix_norms(torch.tensor([[3.0, 0.0], [0.0, -4.0]]), "spectral").item()
    4.0
    """
    if J.is_complex():
        J = torch.view_as_real(J).flatten(-2)
    if norm == "frobenius" or 1 in J.shape[-2:]:
        return torch.linalg.matrix_norm(J)
    scale = J.abs().amax((-2, -1), keepdim=True)
    finite = scale.isfinite()  # LAPACK refuses others, whose norm is then not finite either
    J = torch.where(finite, J / torch.where(scale > 0, scale, 1), 0)
    gram = J @ J.mT if J.shape[-2] <= J.shape[-1] else J.mT @ J
    largest = torch.linalg.eigvalsh(gram)[..., -1]
    return torch.where(finite[..., 0, 0], largest.clamp(min=0).sqrt(), 1) * scale[..., 0, 0]


def decay_bound(W: Tensor, U: Tensor, steps: int) -> Tensor:
    """Return ‖W‖₂^(τ - t) ‖U‖₂, (τ, τ): row τ, column t, zero above the diagonal.

    It bounds ‖∂h_τ / ∂x_t‖₂ of h_τ = f(U x_τ + W h_{τ-1} + b) wherever |f'| is at most 1, as for
    ReLU, real modReLU and tanh. Source: Theorem 3.1. W is (s, s), U is (s, m).
    """
    t = torch.arange(steps)
    delay = (t[:, None] - t).clamp(min=0)
    bound = torch.linalg.matrix_norm(W, 2) ** delay * torch.linalg.matrix_norm(U, 2)
    return torch.tril(bound)

"""Division of a matrix by its spectral radius, differentiated exactly.

Source: Helfrich & Ye 2020, section 3.2: Proposition 3.2 (gradient) and equation 5 (first values).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import pi
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from eigensweep.common.autograd import Function, lanes_in_front

LARGEST_CONDITION = 1e8
"""Condition number κ of an eigenvalue from which on it counts as multiple (float64)."""

MOST_STEPS, SETTLED = 12, 1e-10
"""Steps of inverse iteration from a value that is only near, and the residual to reach, in λ."""

SQUARINGS = 10
"""By which `is_surely_stable` bounds ρ(T): it finds radii below 0.995 or so."""

Fallback = Literal["constant_radius", "unnormalised"]


class Radius(NamedTuple):
    """ρ(T) as a constant, and what its gradient needs."""

    radius: Tensor
    slope: Tensor
    """∂ρ/∂T, or zero."""
    multiple: Tensor
    """Whether the dominant eigenvalue is nearly multiple, so that ρ has no usable gradient."""


def spectral_normalise(
    T: Tensor,
    switched: Tensor,
    eps: float = 0.0,
    fallback: Fallback = "constant_radius",
    near: Tensor | None = None,
    known: Radius | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (T / (ρ(T) + eps) where `switched`, else T; whether the fallback was needed).

    T is real, (s, s); `switched` is a bool tensor without dimensions, and nothing is decomposed
    where it is False. With G the gradient that comes in and C / ρ = ∂ρ/∂T, T receives
    (G - <G, T / (ρ + eps)> C / ρ) / (ρ + eps), and G before the switch.

    Where the dominant eigenvalue is so nearly multiple that ρ has no usable gradient, ρ is treated
    as a constant, or, with `unnormalised`, T is returned as it is. Only a call that records a
    gradient looks for that, or any call with `unnormalised`. `near`, float64 (real, imaginary), is
    close to the dominant eigenvalue and spares the decomposition; NaN where that is unknown. With
    `known`, which is what `find_radius` returns, nothing is computed on the host.

    >>> W, _ = spectral_normalise(torch.tensor([[0.0, 4.0], [1.0, 0.0]]), torch.tensor(True))
    >>> W.tolist()
    [[0.0, 2.0], [0.5, 0.0]]
    """
    if known is None:
        with_slope = torch.is_grad_enabled() or fallback == "unnormalised"
        radius, _, multiple = _radius(T, switched, near, with_slope)
    else:
        radius, multiple = _KnownRadius.apply(T, known.radius, known.slope), known.multiple  # type: ignore[no-untyped-call]
    normal = T / (radius + eps)
    if fallback == "unnormalised":
        switched = switched & ~multiple
    return torch.where(switched, normal, T), multiple


def spectral_radius(T: Tensor, needed: Tensor | None = None) -> Tensor:
    """Return ρ(T), the largest modulus of an eigenvalue, without gradient; 1 if not `needed`."""
    if needed is None:
        needed = torch.ones((), dtype=torch.bool, device=T.device)
    return _radius(T.detach(), needed, None, False)[0]


def find_radius(T: Tensor, switched: Tensor, near: Tensor | None = None) -> Radius:
    """Return what `spectral_normalise` needs to know of T, (s, s), where it is `switched`."""
    return Radius(*_radius(T.detach(), switched, near, True))


def is_surely_stable(T: Tensor) -> Tensor:
    """Return whether a bound shows that ρ(T) is below 1, (); by products only, in float64.

    ρ(T) is at most the 1024th root of the norm of T¹⁰²⁴.

    >>> is_surely_stable(torch.diag(torch.tensor([0.9, -0.99]))).item()
    True
    """
    power = T.detach().double()
    for _ in range(SQUARINGS):
        power = power @ power
    return torch.linalg.matrix_norm(power) < 0.01


def _radius(
    T: Tensor, needed: Tensor, near: Tensor | None, with_slope: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return SpectralRadius.apply(T, needed, near, with_slope)  # type: ignore[no-untyped-call]


class SpectralRadius(Function):
    """(ρ, ∂ρ/∂T, whether the dominant eigenvalue is nearly multiple), of lanes of matrices.

    T is (..., s, s) and `needed` (...); a lane that is not needed has ρ = 1 and slope 0. The work
    is done on the CPU in float64, wherever T lies. For |λ| = ρ with T u = λ u and Tᵀ w = λ w,
    ∂λ/∂T = w uᵀ / (wᵀ u) and ∂ρ/∂T = Re(conj(λ) ∂λ/∂T) / ρ.
    """

    @staticmethod
    def forward(
        T: Tensor, needed: Tensor, near: Tensor | None, with_slope: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        radius = torch.ones(T.shape[:-2], dtype=torch.float64)
        slope = torch.zeros(T.shape, dtype=torch.float64)
        multiple = torch.zeros(T.shape[:-2], dtype=torch.bool)
        for index in needed.nonzero().tolist():
            lane = tuple(index)
            matrix = T[lane].detach().to("cpu", torch.float64)
            pair = None if near is None else eigenpair_near(matrix, near[lane].cpu())
            if pair is not None:
                radius[lane] = pair.value.abs()
                slope[lane], multiple[lane] = pair.radius_slope()
                continue
            value, radius[lane] = dominant_eigenvalue(matrix)
            if with_slope and len(matrix):
                slope[lane], multiple[lane] = radius_slope(matrix, value)
        return radius.to(T), slope.to(T), multiple.to(T.device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, slope, multiple = output
        ctx.mark_non_differentiable(slope, multiple)
        ctx.save_for_backward(slope)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return g[..., None, None] * slope, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *args: Any
    ) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int, int, int]]:
        return _radius(*lanes_in_front(info.batch_size, in_dims, args)), (0, 0, 0)


class _KnownRadius(Function):
    """(T, ρ, ∂ρ/∂T) of lanes to ρ with this slope by T."""

    @staticmethod
    def forward(T: Tensor, radius: Tensor, slope: Tensor) -> Tensor:
        return radius.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return g[..., None, None] * slope, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Tensor) -> tuple[Tensor, int]:
        lanes = lanes_in_front(info.batch_size, in_dims, args)
        return _KnownRadius.apply(*lanes), 0  # type: ignore[no-untyped-call]


def dominant_eigenvalue(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return (λ, |λ|), the eigenvalue of largest modulus: 0 without entries, NaN if not finite."""
    if T.shape[-1] == 0:
        return T.new_zeros((), dtype=torch.complex128), T.new_zeros(())
    if not T.isfinite().all():
        return T.new_full((), torch.nan, dtype=torch.complex128), T.new_full((), torch.nan)
    values = torch.linalg.eigvals(T)
    value = values[values.abs().argmax()]
    return value, value.abs()


def radius_slope(T: Tensor, value: Tensor) -> tuple[Tensor, bool]:
    """Return (∂ρ/∂T, False) for the eigenvalue λ = `value`, (0, True) if it is nearly multiple.

    u and w come of two steps of inverse iteration from one factorisation: faster than all
    eigenvectors (s = 720: 40 ms against 200 ms), and untouched by other eigenvalues that are close.
    """
    steps = _inverse_iteration(T, value)
    next(steps)
    return Eigenpair(value, *next(steps)).radius_slope()


class Eigenpair(NamedTuple):
    """λ with T u = λ u and Tᵀ w = λ w, u and w columns of length 1."""

    value: Tensor
    u: Tensor
    w: Tensor

    def radius_slope(self) -> tuple[Tensor, bool]:
        """Return (∂|λ|/∂T, False), or (0, True) where λ is nearly multiple."""
        overlap = (self.w.mT @ self.u).squeeze()
        if not overlap.abs() * LARGEST_CONDITION >= 1:  # κ = |u||w| / |wᵀu|; true for NaN, too
            return torch.zeros(len(self.u), len(self.u), dtype=torch.float64), True
        a = self.value.conj() / (self.value.abs() * overlap) * self.w
        u = self.u.to(a.dtype)
        return a.real @ u.real.mT - a.imag @ u.imag.mT, False  # Re(a uᵀ)


def eigenpair_near(T: Tensor, near: Tensor) -> Eigenpair | None:
    """Return the eigenpair next to `near`, (real, imaginary), or None if none is found there.

    It is found if inverse iteration converges within a few steps to a value within 5% of `near`.
    """
    shift = torch.complex(near[0], near[1])
    if not (shift.isfinite() and T.isfinite().all()):
        return None
    M = T.to(shift.dtype) if shift.imag != 0 else T
    for _, (u, w) in zip(range(MOST_STEPS), _inverse_iteration(T, shift), strict=False):
        value = ((w.mT @ M @ u) / (w.mT @ u)).squeeze()
        residual = torch.maximum((M @ u - value * u).norm(), (M.mT @ w - value * w).norm())
        if residual <= SETTLED * value.abs():
            close = (value - shift).abs() <= 0.05 * shift.abs()
            return Eigenpair(value.to(shift.dtype), u, w) if close else None
    return None


def _inverse_iteration(T: Tensor, near: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield better and better (u, w) of the eigenvalue next to `near`, complex."""
    shift = near.real if near.imag == 0 else near
    shift = shift + 1e-10 * near.abs()
    eye = torch.eye(len(T), dtype=shift.dtype)
    LU, pivots, _ = torch.linalg.lu_factor_ex(T.to(shift.dtype) - shift * eye)
    u = torch.arange(len(T)).cos().to(shift.dtype)[:, None]
    v = u
    while True:
        u = _unit(torch.linalg.lu_solve(LU, pivots, u))
        v = _unit(torch.linalg.lu_solve(LU, pivots, v, adjoint=True))
        yield u, v.conj()


def _unit(column: Tensor) -> Tensor:
    return column / column.norm()


def initial_short_block(s: int) -> Tensor:
    """Return equation 5's T: 2x2 blocks γ · rotation(t), γ ~ U[-1, 1), t ~ U[0, π/2).

    The eigenvalues γ e^{±it} have moduli uniform in [0, 1]. An odd s has one more block γ.
    """
    planes = s // 2
    scale, angle = 2 * torch.rand(planes) - 1, torch.rand(planes) * pi / 2
    T = torch.zeros(s, s)
    i = 2 * torch.arange(planes)
    T[i, i] = T[i + 1, i + 1] = scale * angle.cos()
    T[i + 1, i] = scale * angle.sin()
    T[i, i + 1] = -T[i + 1, i]
    if s % 2:
        T[-1, -1] = 2 * torch.rand(()) - 1
    return T

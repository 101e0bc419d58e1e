"""The exponential of a skew-symmetric matrix and its gradient.

On a CPU: scaling and squaring, Higham, "The scaling and squaring method for the matrix exponential
revisited", SIAM J. Matrix Anal. Appl. 26 (2005), section 2. For a skew-symmetric A a diagonal
rational function p(A) p(-A)⁻¹ is orthogonal whatever its degree: p(A) = E + O with E even and
symmetric, O odd and skew-symmetric. It turns by 2 atan(O / E) where A turns by an angle.
Degree and squarings follow each matrix's norm, and small matrices need no division.

Departure: in float32 p is not Padé's. It is right at Chebyshev's points of the angles that a degree
serves, not only at zero, and so serves larger ones.

On other devices the same operations run for every A: `static_exponential.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, comb, inf, log2, perm, pi
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor
from torch.autograd.function import once_differentiable

from eigensweep.common.autograd import Function
from eigensweep.models.matrices.division import Divisor
from eigensweep.models.matrices.mirror import mirrored_product, skew_part, symmetric
from eigensweep.models.matrices.orthogonal import polish
from eigensweep.models.matrices.static_exponential import StaticExponential

LARGE = 256
"""Rows from which on a closer norm saves more than it costs."""
LANCZOS_STEPS = 10
PIVOTS = 4.2
"""2-norm of A above which blocks of p(A) are often nearly singular."""


def exponential(A: Tensor) -> Tensor:
    """Return exp(A), (..., n, n), orthogonal, for a skew-symmetric A.

    A lane's result does not depend on the other lanes. The gradient is the skew-symmetric part of
    the gradient for free entries, because A stays skew-symmetric. Only first derivatives are
    available.

    >>> exponential(torch.tensor([[0.0, -torch.pi], [torch.pi, 0.0]])).diagonal().round().tolist()
    [-1.0, -1.0]
    """
    if A.device.type == "cpu":
        return _Exponential.apply(A, _Lanes())  # type: ignore[no-untyped-call]
    return static_exponential(A)


def static_exponential(A: Tensor) -> Tensor:
    """Return exp(A), (..., n, n), by the same operations whatever is in A; NaN beyond a norm."""
    return _Exponential.apply(A, StaticExponential())  # type: ignore[no-untyped-call]


class _Lanes:
    """Matrices (lanes, n, n), each evaluated alone."""

    def evaluate(self, A: Tensor) -> Tensor:
        self.lanes = [_Evaluated(a) for a in A]
        return torch.stack([lane.W for lane in self.lanes])

    def gradient(self, G: Tensor) -> Tensor:
        return torch.stack([lane.gradient(g) for lane, g in zip(self.lanes, G, strict=True)])


class _Exponential(Function):
    """exp(A) of matrices (..., n, n), by `lanes`, which keeps what the gradient needs."""

    @staticmethod
    def forward(A: Tensor, lanes: _Lanes | StaticExponential) -> Tensor:
        if not A.numel():
            return A.clone()
        return lanes.evaluate(A.reshape(-1, *A.shape[-2:])).reshape(A.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        A, ctx.lanes = inputs
        ctx.save_for_backward(A)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor, None]:
        (A,) = ctx.saved_tensors
        return _Gradient.apply(G, A, ctx.lanes), None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], A: Tensor, lanes: _Lanes | StaticExponential
    ) -> tuple[Tensor, int]:
        assert in_dims[0] is not None
        return _Exponential.apply(A.movedim(in_dims[0], 0), lanes), 0  # type: ignore[no-untyped-call]


class _Gradient(Function):
    """The gradient to A from that to exp(A), both (..., n, n). Has no gradient of its own."""

    @staticmethod
    def forward(G: Tensor, A: Tensor, lanes: _Lanes | StaticExponential) -> Tensor:
        if not G.numel():
            return G.clone()
        return lanes.gradient(G.reshape(-1, *G.shape[-2:])).reshape(G.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        G: Tensor,
        A: Tensor,
        lanes: _Lanes | StaticExponential,
    ) -> tuple[Tensor, int]:
        of_G, of_A = in_dims[:2]
        G = G.expand(info.batch_size, *G.shape) if of_G is None else G.movedim(of_G, 0)
        if of_A is None:  # several gradients of the same matrices
            return torch.stack([_Gradient.apply(g, A, lanes) for g in G]), 0  # type: ignore[no-untyped-call]
        return _Gradient.apply(G, A.movedim(of_A, 0), lanes), 0  # type: ignore[no-untyped-call]


class _Evaluated:
    """W = exp(A) of one matrix, and what its gradient needs."""

    def __init__(self, A: Tensor) -> None:
        self.A, self.powers, s, self.form, norm = _scale_down(A)
        even = _combine(self.powers, self.form.even)
        Z = _combine(self.powers, self.form.odd)
        odd = mirrored_product(self.A, Z, -1)
        self.Z_B = None if len(self.powers) == 1 else _combine(self.powers[:-1], self.form.odd[1:])
        Y = even + odd
        if self.form.divides:
            # The memory of E + O by rows is that of N = E - O by columns, as LAPACK wants it. Its
            # angles are halves of those of A, and E is their cosine.
            self.N = Divisor(Y.mT, pivots=norm > PIVOTS)
            Y = self.N.divide(Y)
        self.Y, self.squared = Y, []
        for k in range(1, s + 1):
            self.squared.append(Y)
            Y = Y @ Y
            if k == s or k % 8 == 0:  # each square doubles what rounding has left
                Y = polish(Y)
        self.W = Y

    def gradient(self, G: Tensor) -> Tensor:
        """Return the gradient to A, skew-symmetric, from that to W."""
        for Y in reversed(self.squared):
            G = (G @ Y.mT).add_(Y.mT @ G)
        if self.form.divides:
            # With N = E - O and Y = Nᵀ N⁻¹: dY = (dNᵀ - Y dN) N⁻¹.
            K = self.N.divide_by_transpose(G)
            M = self.Y.mT @ K
            dE, dO = symmetric(K - M), skew_part(K.add_(M))
        else:
            dE, dO = symmetric(G), skew_part(G)
        # With B = A², E = E(B) and O = A Z(B), where Z(B) = z I + B Z_B.
        even, odd = self.form.even, self.form.odd
        F = self.A @ dO
        dZ = symmetric(F)
        gradients = [
            torch.mul(dE, e).sub_(dZ, alpha=z) for e, z in zip(even[1:], odd[1:], strict=True)
        ]
        for k in range(len(self.powers) - 1, 0, -1):  # powers[k] = powers[0] powers[k - 1]
            of_last = symmetric(self.powers[0] @ gradients[k])
            of_first = of_last if k == 1 else symmetric(self.powers[k - 1] @ gradients[k])
            gradients[0].add_(of_first)
            gradients[k - 1].add_(of_last)
        of_Z = odd[1] * F if self.Z_B is None else self.Z_B @ F
        dA = (self.A @ of_Z.sub_(gradients[0], alpha=2)).add_(dO, alpha=odd[0])
        return skew_part(dA).div_(2.0 ** len(self.squared))


@dataclass(frozen=True)
class _Form:
    """p = E + O: even coefficients of A⁰, A², A⁴, ..., and odd ones of A, A³, A⁵, ...

    exp(A) is p(A) p(-A)⁻¹ if the form `divides`, and p(A) itself if it does not.
    """

    largest: float
    """2-norm of A up to which it serves."""
    even: list[float]
    odd: list[float]
    divides: bool = True


def _pade(degree: int, largest: float) -> _Form:
    """Return Padé's approximant.

    >>> _pade(3, 0.5).even == [1, 1 / 10] and _pade(3, 0.5).odd == [1 / 2, 1 / 120]
    True
    """
    c = [comb(degree, k) / perm(2 * degree, k) for k in range(degree + 1)]
    return _Form(largest, c[::2], c[1::2])


def _rational(degree: int, largest: float) -> _Form:
    """Return a rational form whose angles are right at Chebyshev's points of 0 to `largest`²."""
    k = degree // 2
    points = 2 * k + 1
    v = (1 + np.cos((2 * np.arange(points) + 1) * pi / (2 * points))) / 2
    a = largest * np.sqrt(v)
    # sin(a/2) E(a²) = a cos(a/2) Z(a²), with E(0) = 1, in powers of v = (a / largest)².
    of_even = np.sin(a / 2)[:, None] * v[:, None] ** np.arange(1, k + 1)
    of_odd = (a * np.cos(a / 2))[:, None] * v[:, None] ** np.arange(k + 1)
    found = np.linalg.solve(np.concatenate((of_even, -of_odd), 1), -np.sin(a / 2))
    scale = (-(largest**2.0)) ** -np.arange(k + 1)  # A² = -a²
    even, odd = np.concatenate(([1], found[:k])) * scale, found[k:] * scale
    return _Form(largest, even.tolist(), odd.tolist())


def _polynomials(degree: int, largest: float) -> tuple[list[float], list[float]]:
    """Return coefficients c_k of A²ᵏ for cos x and sin x / x, with x² = -A² from 0 to `largest`².

    They interpolate at Chebyshev's points; cos x is 1 exactly at 0.
    """

    def interpolate(f: Any, degree: int) -> Any:
        found = Chebyshev.interpolate(f, degree, domain=[0, largest**2])
        return found.convert(kind=Polynomial).coef

    def sinc(x: Any) -> Any:
        return np.sinc(x / pi)

    signs = (-1.0) ** np.arange(degree + 1)
    less_one = interpolate(lambda u: -(sinc(np.sqrt(u) / 2) ** 2) / 2, degree - 1)
    cos = signs * np.concatenate(([1.0], less_one))
    return cos.tolist(), (signs * interpolate(lambda u: sinc(np.sqrt(u)), degree)).tolist()


FORMS = {
    torch.float32: [
        _Form(0.02, *_polynomials(1, 0.02), divides=False),
        _Form(0.24, *_polynomials(2, 0.24), divides=False),
        *(_rational(degree, largest) for degree, largest in ((3, 1.04), (5, 4.2), (7, 8.4))),
    ],
    torch.float64: [
        *(_pade(d, norm) for d, norm in ((3, 0.0149), (5, 0.254), (7, 0.952), (9, 2.11)))
    ],
}
"""The cheapest first. They turn by no wrong angle, to 4e-7 or 1e-16 of the angle."""


def _scale_down(A: Tensor) -> tuple[Tensor, list[Tensor], int, _Form, float]:
    """Return A/2ˢ, its even powers as far as its form needs them, s squarings, the form, |A/2ˢ|₂.

    |A|₂ is at most the k-th root of |Aᵏ|₁, the more closely the larger k. That of a large matrix
    can be several times |A|₂, so |A|₂ is estimated too.
    """
    forms, square = FORMS[A.dtype], mirrored_product(A, A)
    norm = _one_norm(square) ** 0.5
    s = ceil(log2(max(norm, 2.0**10))) - 10  # so that no power overflows
    if s:
        A, square, norm = A / 2.0**s, square / 4.0**s, norm / 2.0**s
    if len(A) >= LARGE:
        norm = min(norm, 1.02 * _estimate_norm(square) ** 0.5)
    powers = [square]
    for form in forms:
        while len(powers) < len(form.even) - 1:
            powers.append(mirrored_product(square, powers[-1]))
            norm = min(norm, _one_norm(powers[-1]) ** (0.5 / len(powers)))
        if norm <= form.largest:
            break
    powers = powers[: len(form.even) - 1]
    more = ceil(log2(norm / form.largest)) if norm > form.largest else 0
    if more:
        A, powers = A / 2.0**more, [P / 4.0 ** (k * more) for k, P in enumerate(powers, 1)]
    return A, powers, s + more, form, norm / 2.0**more


def _one_norm(P: Tensor) -> float:
    """Return |P|₁; columns that are not finite do not count."""
    sums = P.abs().sum(0)
    return torch.where(sums.isfinite(), sums, 0).max().item()


def _estimate_norm(P: Tensor) -> float:
    """Return about |P|₂ of a symmetric P, hardly ever 2 % too small: ten steps of Lanczos.

    It is infinite where P is not finite.
    """
    x = torch.randn(len(P), generator=torch.Generator().manual_seed(0), dtype=P.dtype)
    x /= x.norm()
    before, T = torch.zeros_like(x), np.zeros((LANCZOS_STEPS, LANCZOS_STEPS))
    for k in range(LANCZOS_STEPS):
        y = torch.mv(P, x)
        T[k, k] = torch.dot(x, y)
        y -= T[k, k] * x + T[k, k - 1] * before
        length = y.norm().item()
        if k + 1 == LANCZOS_STEPS or length <= 1e-6 * abs(T[k, k]):
            break
        T[k, k + 1] = T[k + 1, k] = length
        before, x = x, y / length
    return float(abs(np.linalg.eigvalsh(T)).max()) if np.isfinite(T).all() else inf


def _combine(powers: list[Tensor], coefficients: list[float]) -> Tensor:
    """Return c_0 I + c_1 A² + c_2 A⁴ + ..., over as many powers as there are."""
    total = powers[0] * coefficients[1]
    for c, P in zip(coefficients[2:], powers[1:], strict=True):
        total.add_(P, alpha=c)
    total.diagonal().add_(coefficients[0])
    return total

"""The exponential of skew-symmetric matrices by the same operations whatever they hold.

No number is read back, so that a CUDA graph can hold it. In a graph an operation on small matrices
costs about as much as any other one, so there are few: the gradient is written out, sums go into
products, and lanes with different norms are told apart at the end of a stage of squarings only.

A/2ˢ has a norm of at most π/2, where polynomials in A² approximate cos x - 1 and sin x / x of
x² = -A². It is squared s times, s one of `SQUARED`. What is squared is D = W - I, as 2D + D²: a
small D keeps its digits, so that squarings beyond those that a lane needs cost few.
"""

from __future__ import annotations

from itertools import pairwise
from math import nan, pi
from typing import Any

import numpy as np
import torch
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

SQUARED = (0, 2, 5, 11)
"""Squarings after each stage. They serve norms of A up to 2¹¹ π/2 = 3217."""


def polynomials(degree: int) -> tuple[list[float], list[float]]:
    """Return coefficients c_k of A²ᵏ for cos x and sin x / x, with x² = -A² from 0 to (π/2)².

    They are 1 exactly at 0, and interpolate 1 - cos x and 1 - sin x / x over x² at Chebyshev's
    points; the latter is the mean of (1 - cos tx) / x² over t from 0 to 1.
    """
    nodes: Any = np.polynomial.legendre.leggauss(16)
    t, weights = (nodes[0] + 1) / 2, nodes[1] / 2

    def coefficients(f: Any) -> list[float]:
        found = Chebyshev.interpolate(f, degree - 1, domain=[0, (pi / 2) ** 2])
        powers: Any = found.convert(kind=Polynomial).coef
        return [1.0, *(powers * (-1.0) ** np.arange(degree))]

    def versine(u: Any) -> Any:
        return np.sinc(np.sqrt(u) / (2 * pi)) ** 2 / 2

    def mean(u: Any) -> Any:
        return versine(np.asarray(u)[..., None] * t**2) @ (weights * t**2)

    return coefficients(versine), coefficients(mean)


POLYNOMIALS = {torch.float32: polynomials(4), torch.float64: polynomials(8)}
"""Right to 2e-7 or 4e-16; their degree is even."""


class StaticExponential:
    """W = exp(A) of matrices (lanes, n, n), and what its gradient needs."""

    def evaluate(self, A: Tensor) -> Tensor:
        """Return exp(A); NaN beyond the largest norm."""
        square = torch.bmm(A, A)
        fourth = torch.bmm(square, square)
        # |A|₂ is at most the fourth root of |A⁴|₁.
        bound = torch.linalg.vector_norm(fourth, 1, -2).amax(-1)[:, None, None]
        enough = [bound <= (2.0**s * pi / 2) ** 4 for s in SQUARED]
        scale: Any = nan
        for s, these in zip(reversed(SQUARED), reversed(enough), strict=True):
            scale = torch.where(these, 2.0**-s, scale)
        of_square = scale * scale
        self.scale, self.A = scale, A * scale
        self.square, self.fourth = square.mul_(of_square), fourth.mul_(of_square * of_square)
        cos, sinc = POLYNOMIALS[A.dtype]
        self.first = sinc[0]
        self.even, self.odd = self._terms(cos), self._terms(sinc)
        (_, b, E), (_, c, Z) = self.even[0], self.odd[0]
        D = torch.baddbmm(E, self.A, Z, beta=b, alpha=c).add_(self.A, alpha=self.first)
        self.stages = []
        for these, (begin, end) in zip(enough[:-1], pairwise(SQUARED), strict=True):
            squared = [D]
            for _ in range(begin, end):
                squared.append(torch.baddbmm(squared[-1], squared[-1], squared[-1], beta=2))
            self.stages.append((these, squared[:-1]))
            D = torch.where(these, D, squared[-1])
        D.diagonal(dim1=-2, dim2=-1).add_(1)
        # As `polish`, which squares the error of a nearly orthogonal matrix.
        return torch.baddbmm(D, D, torch.bmm(D.mT, D), beta=1.5, alpha=-0.5)

    def _terms(self, coefficients: list[float]) -> list[tuple[float, float, Tensor]]:
        """Return (a, b, T) with a A² + b A⁴ + A⁴ (a' A² + b' A⁴ + ...) = b T, and so on inwards."""
        terms: list[tuple[float, float, Tensor]] = []
        for a, b in reversed(list(zip(coefficients[1::2], coefficients[2::2], strict=True))):
            T = torch.add(self.fourth, self.square, alpha=a / b)
            if terms:
                _, inner_b, inner = terms[0]
                T = torch.baddbmm(T, self.fourth, inner, alpha=inner_b / b)
            terms.insert(0, (a, b, T))
        return terms

    def gradient(self, G: Tensor) -> Tensor:
        """Return the gradient to A, skew-symmetric, from that to W."""
        for these, squared in reversed(self.stages):
            g = G
            for D in reversed(squared):
                g = torch.baddbmm(g, g, D.mT, beta=2).baddbmm_(D.mT, g)
            G = torch.where(these, G, g)
        # With B = A²: D = E(B) + A (z + Z(B)). What is not symmetric in the gradients to E, Z, B
        # and B², or not skew-symmetric in that to A Z, does not reach A.
        E, O = G + G.mT, G - G.mT  # noqa: E741  # twice the gradients to E and to A Z
        AO = torch.bmm(self.A, O)
        Z = AO + AO.mT  # -4 times that to Z
        # The gradients to B and B² over ea / 2 and eb / 2, the innermost pair of terms first.
        of_square, of_fourth = E, Z
        inner: tuple[Any, ...] | None = None
        for (ea, eb, T), (za, zb, U) in zip(reversed(self.even), reversed(self.odd), strict=True):
            to_square = torch.add(E, Z, alpha=-za / ea / 2)
            to_fourth = torch.add(E, Z, alpha=-zb / eb / 2)
            if inner is not None:
                ia, ib, iT, izb, iU = inner
                to_square.baddbmm_(self.fourth, of_square, alpha=ia / ea)
                to_fourth.baddbmm_(self.fourth, of_fourth, alpha=ib / eb)
                to_fourth.baddbmm_(E, iT, alpha=ib / eb).baddbmm_(Z, iU, alpha=-izb / eb / 2)
            of_square, of_fourth, inner = to_square, to_fourth, (ea, eb, T, zb, U)
        S = of_fourth + of_fourth.mT
        of_square.baddbmm_(self.square, S, alpha=eb / ea)
        R = of_square + of_square.mT
        dA = torch.baddbmm(O, O, U, beta=self.first / 4, alpha=zb / 4)
        dA.baddbmm_(self.A, R, alpha=-ea / 4)
        return (dA - dA.mT).mul_(self.scale)

"""Products of rotations of pairs of units, real or complex.

Source: Jing et al., "Tunable Efficient Unitary Neural Networks (EUNN) and their Application to
RNNs", ICML 2017, sections 3 and 4. A rotation of units (a, b) is the block

    [[cos θ, -e^{iφ} sin θ],
     [sin θ,  e^{iφ} cos θ]]

without the phase where real. A layer rotates disjoint pairs; X is (n, k), one vector a column.

Departure: the paper has the phase in the first row, the program in the second column, as here;
the products reach the same matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Angles(NamedTuple):
    """The angles of the pairs that a layer rotates, or of several layers in front."""

    theta: Tensor
    phi: Tensor | None = None
    """None: real."""

    def each(self, change: Callable[[Tensor], Tensor]) -> Angles:
        """Return the angles after a change of shape."""
        return Angles(change(self.theta), None if self.phi is None else change(self.phi))

    def layer(self, index: int) -> Angles:
        """Return one layer's angles."""
        return self.each(lambda v: v[index])


def rotate(a: Tensor, b: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
    """Return the rotated units a and b, (..., pairs, k), by angles (..., pairs)."""
    theta = angles.theta.unsqueeze(-1)
    cos, sin = theta.cos(), theta.sin()
    if angles.phi is not None:
        phi = angles.phi.unsqueeze(-1)
        b = torch.complex(phi.cos(), phi.sin()) * b
    return cos * a - sin * b, sin * a + cos * b


def rotate_neighbours(X: Tensor, angles: Angles, first: int = 0) -> Tensor:
    """Return X with the units (first, first + 1), (first + 2, first + 3), ... rotated.

    >>> quarter = Angles(torch.tensor([torch.pi / 2]))
    >>> rotate_neighbours(torch.tensor([[1.0], [2.0], [3.0], [4.0]]), quarter, first=1).T.round()
    tensor([[ 1., -3.,  2.,  4.]])
    """
    end = X.shape[-2] - first
    a, b = torch.unflatten(X[..., first:end, :], -2, (-1, 2)).unbind(-2)
    turned = torch.stack(rotate(a, b, angles), -2).flatten(-3, -2)
    return torch.cat((X[..., :first, :], turned, X[..., end:, :]), -2) if first else turned


def rotate_at_distance(X: Tensor, angles: Angles, segments: int) -> Tensor:
    """Return X with units half a segment apart rotated, in each of so many segments.

    The pair at offset o of segment g has the angles at o · segments + g.
    """
    a, b = torch.unflatten(X, -2, (segments, 2, -1)).unbind(-3)
    turned = rotate(a, b, angles.each(lambda v: torch.unflatten(v, -1, (-1, segments)).mT))
    return torch.stack(turned, -3).flatten(-4, -2)


def tunable_product(even: Angles, odd: Angles) -> Tensor:
    """Return B_l A_l ··· B_1 A_1, (n, n), where layers A and B rotate neighbours.

    A rotates the n/2 pairs (0, 1), (2, 3), ..., B the n/2 - 1 pairs (1, 2), (3, 4), ... Angles are
    (l, n/2) in `even` and (l, n/2 - 1) in `odd`.
    """
    layers, pairs = even.theta.shape[-2:]
    X = _eye(2 * pairs, even)
    for index in range(layers):
        X = rotate_neighbours(X, even.layer(index))
        if pairs > 1:
            X = rotate_neighbours(X, odd.layer(index), first=1)
    return X


def fft_product(angles: Angles) -> Tensor:
    """Return F_{K-1} ··· F_1 F_0, (n, n) with n = 2^K: layer k rotates units n / 2^{k+1} apart.

    Angles are (K, n/2).
    """
    layers, pairs = angles.theta.shape[-2:]
    X = _eye(2 * pairs, angles)
    for index in range(layers):
        X = rotate_at_distance(X, angles.layer(index), 2**index)
    return X


def _eye(n: int, angles: Angles) -> Tensor:
    eye = torch.eye(n, dtype=angles.theta.dtype, device=angles.theta.device)
    return eye if angles.phi is None else torch.complex(eye, torch.zeros_like(eye))

"""Division by matrices of all sizes, with and without pivots."""

from math import cos, pi, sin
from unittest import mock

import pytest
import torch

from eigensweep.models.matrices.division import LARGE, Divisor, inverse_by_products
from eigensweep.models.matrices.orthogonal import skew


def check_division(n, definite, pivots, seed=0):
    torch.manual_seed(seed)
    N = skew(torch.randn(n, n, dtype=torch.float64)) / 4
    if definite:
        N += 1.5 * torch.eye(n)  # else the blocks on the diagonal may have no inverse
    B = torch.randn(n, n, dtype=torch.float64)
    if not definite:
        N[:, : n // 2], N[:, n // 2 :] = N[:, n - n // 2 :].clone(), N[:, : n - n // 2].clone()
        N += torch.eye(n).roll(1, 0)
    divisor = Divisor(N.mT.contiguous().mT, pivots)
    torch.testing.assert_close(divisor.divide(B) @ N, B, atol=1e-9, rtol=0)
    torch.testing.assert_close(divisor.divide_by_transpose(B) @ N.mT, B, atol=1e-9, rtol=0)


@pytest.mark.parametrize("n", [0, 1, 40, LARGE + 45])
@pytest.mark.parametrize("definite", [True, False])
@pytest.mark.parametrize("pivots", [True, False])
def test_a_divisor_divides_from_the_right(n, definite, pivots):
    check_division(n, definite, pivots)


@pytest.mark.parametrize("seed", [10, 63, 65, 234, 285, 303])
def test_an_imprecise_inverse_is_made_with_pivots(seed):
    """No block of these has a large inverse, and without pivots they lose four digits and more."""
    check_division(LARGE + 45, definite=False, pivots=False, seed=seed)


def test_pivots_are_left_out_until_a_block_has_a_large_inverse():
    n = 2 * LARGE
    R = torch.eye(n, dtype=torch.float64)  # planes of one unit of the first half and one after it
    first, other = R[: n // 2, : n // 2], R[n // 2 :, : n // 2]
    with mock.patch.object(torch.linalg, "lu_factor_ex", wraps=torch.linalg.lu_factor_ex) as LU:
        for angle, pivots in ((0.5, 0), (1.4, 0), (1.5, 1), (pi / 2, 1), (2.0, 0), (3.0, 0)):
            LU.reset_mock()
            first.fill_(0).fill_diagonal_(cos(angle))
            R[n // 2 :, n // 2 :] = first
            other.fill_(0).fill_diagonal_(sin(angle))
            R[: n // 2, n // 2 :] = -other
            found = Divisor(R, pivots=False).divide(torch.eye(n, dtype=torch.float64))
            assert LU.call_count == pivots
            torch.testing.assert_close(found, R.mT, atol=1e-14, rtol=0)


def test_the_inverse_of_what_is_not_finite_is_not_finite():
    M = torch.eye(200)
    M[150, 3] = torch.nan
    assert not inverse_by_products(M).isfinite().all()

"""Division by matrices of all sizes, with and without pivots."""

import pytest
import torch

from eigensweep.models.matrices.division import LARGE, Divisor, inverse_by_products
from eigensweep.models.matrices.orthogonal import skew


@pytest.mark.parametrize("n", [0, 1, 40, LARGE + 45])
@pytest.mark.parametrize("definite", [True, False])
def test_a_divisor_divides_from_the_right(n, definite):
    N = skew(torch.randn(n, n, dtype=torch.float64)) / 4
    if definite:
        N += 1.5 * torch.eye(n)  # else the blocks on the diagonal may have no inverse
    B = torch.randn(n, n, dtype=torch.float64)
    if not definite:
        N[:, : n // 2], N[:, n // 2 :] = N[:, n - n // 2 :].clone(), N[:, : n - n // 2].clone()
        N += torch.eye(n).roll(1, 0)
    divisor = Divisor(N.mT.contiguous().mT, definite)
    torch.testing.assert_close(divisor.divide(B) @ N, B, atol=1e-9, rtol=0)
    torch.testing.assert_close(divisor.divide_by_transpose(B) @ N.mT, B, atol=1e-9, rtol=0)


def test_an_inverse_by_products_of_what_is_not_finite_is_not_finite():
    M = torch.eye(200)
    M[150, 3] = torch.nan
    assert not inverse_by_products(M).isfinite().all()

"""Sums of a matrix and its transpose, compiled and not."""

import pytest
import torch
from helpers.compilers import need_libraries

from eigensweep.models.matrices import mirror
from eigensweep.models.matrices.mirror import (
    less_transpose,
    mirrored_product,
    skew_part,
    symmetric,
)


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def tiles(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setattr(mirror, "load_library", lambda source: None)
    else:
        need_libraries(mirror.SOURCE)


@pytest.mark.parametrize("n", [0, 1, 7, 128, 143, 160])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_the_sums(n, dtype):
    M = torch.randn(n, n, dtype=dtype)
    assert torch.equal(symmetric(M), (M + M.mT) / 2)
    assert torch.equal(skew_part(M), (M - M.mT) / 2)
    assert torch.equal(less_transpose(M), M - M.mT)


@pytest.mark.parametrize("n", [0, 5, 600])
def test_of_a_mirrored_product_half_is_computed(n):
    A = skew_part(torch.randn(n, n, dtype=torch.float64))
    square = mirrored_product(A, A)
    cube = mirrored_product(A, square, -1)
    torch.testing.assert_close(square, A @ A)
    torch.testing.assert_close(cube, A @ A @ A)
    if n == 600 and mirror.load_library(mirror.SOURCE) is not None:
        assert torch.equal(square, square.mT)
        assert torch.equal(cube, -cube.mT)
        A[3, 500] = A[500, 3] = torch.nan
        assert mirrored_product(A, A, -1)[3].isnan().all()


def test_rows_may_be_columns():
    M = torch.randn(150, 300)[:, ::2].mT
    assert torch.equal(less_transpose(M), M - M.mT)


def test_what_is_not_a_number_passes_through():
    M = torch.zeros(130, 130)
    M[3, 100] = torch.nan
    assert symmetric(M).isnan().nonzero().tolist() == [[3, 100], [100, 3]]


def test_it_has_second_derivatives_and_lanes():
    M = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.vmap(less_transpose), M)
    assert torch.autograd.gradgradcheck(lambda M: less_transpose(M).square(), M)

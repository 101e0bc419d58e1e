import math

import pytest
import torch

from eigensweep.models.matrices.initial import draw, semi_orthogonal
from eigensweep.models.matrices.orthogonal import (
    cayley,
    initial_skew,
    nearest_orthogonal,
    orthogonality_error,
    random_rotation,
    reorthogonalise,
    rotation_logarithm,
    skew,
)

OPTIMIZERS = {
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def signs(n, k):
    return torch.where(torch.arange(n) < n - k, 1.0, -1.0).double()


def test_scornns_closed_form_gradient_is_that_of_autograd():
    n = 9
    X, G = (torch.randn(n, n, dtype=torch.float64) for _ in range(2))
    X.requires_grad_()
    D = signs(n, 4)
    W = cayley(skew(X)) * D
    (found,) = torch.autograd.grad(W, X, G)
    A, eye = skew(X).detach(), torch.eye(n, dtype=torch.float64)
    M = torch.linalg.inv(eye + A).mT @ G @ (D.diag() + W.detach().mT)
    torch.testing.assert_close(found, (M.mT - M).triu(1), atol=1e-12, rtol=0)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_upper_triangle_follows_the_authors_full_matrix(optimizer):
    n, target = 6, torch.randn(6, 6, dtype=torch.float64)
    upper = initial_skew(n, "cayley").double().requires_grad_()
    full = skew(upper).detach().requires_grad_()
    ours, theirs = OPTIMIZERS[optimizer]([upper]), OPTIMIZERS[optimizer]([full])
    for _ in range(50):
        ours.zero_grad()
        ((cayley(skew(upper)) - target) ** 2).sum().backward()
        ours.step()
        theirs.zero_grad()
        free = full.detach().requires_grad_()
        (M,) = torch.autograd.grad(((cayley(free) - target) ** 2).sum(), free)
        full.grad = M - M.mT
        theirs.step()
    torch.testing.assert_close(skew(upper), full, atol=1e-13, rtol=0)


@pytest.mark.parametrize("k", [0, 1, 4, 7])
def test_k_negative_ones_give_determinant_minus_one_to_the_k(nets, k):
    W = nets.generic("scornn", hidden_size=7, negative_ones=k).recurrent_matrix()
    assert torch.linalg.det(W).item() == pytest.approx((-1) ** k)


def test_the_cayley_map_reaches_all_angles_but_a_half_turn():
    for angle in (0.3, 1.5, 3.0):
        A = torch.tensor([[0.0, math.tan(angle / 2)], [-math.tan(angle / 2), 0.0]])
        rotation = torch.tensor(
            [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        )
        torch.testing.assert_close(cayley(A), rotation)


def test_large_matrices_stay_orthogonal_in_float32():
    A = skew(torch.randn(600, 600))
    assert orthogonality_error(cayley(A)) < 1e-5


@pytest.mark.parametrize("scale", [0.1, 100], ids=["by products", "by LAPACK"])
def test_a_large_cayley_map_and_its_gradient_solve_the_system(scale):
    A, eye = skew(scale * torch.randn(2, 300, 300)), torch.eye(300, dtype=torch.float64)
    G = torch.randn(2, 300, 300)

    def of(f, A, G):
        A = A.clone().requires_grad_()
        W = f(A)
        return W.detach(), torch.autograd.grad(W, A, G)[0]

    W, dA = of(lambda A: torch.linalg.solve(eye + A, eye - A), A.double(), G.double())
    found, gradient = of(cayley, A, G)
    torch.testing.assert_close(found, W.float(), atol=2e-6, rtol=0)
    torch.testing.assert_close(gradient, dA.float(), atol=1e-4, rtol=0)
    stacked, of_stacked = of(torch.vmap(cayley), A, G)
    assert torch.equal(stacked, found)
    torch.testing.assert_close(of_stacked, gradient, atol=1e-4, rtol=0)


def test_the_cayley_map_has_all_derivatives():
    A = skew(torch.randn(2, 4, 4, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradgradcheck(cayley, A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_where_a_matrix_is_not_finite_there_is_no_nearest_one(dtype):
    M = torch.randn(2, 5, 5, dtype=dtype)
    M[0, 1, 2] = torch.inf
    Q = nearest_orthogonal(M)
    assert Q[0].isnan().all()
    assert orthogonality_error(Q[1]) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_a_nearly_orthogonal_matrix_is_made_so_by_products(dtype):
    torch.manual_seed(1)
    W = nearest_orthogonal(torch.randn(4, 20, 20, dtype=dtype))
    W = W + 0.01 * torch.randn_like(W)
    found, expected = reorthogonalise(W), nearest_orthogonal(W)
    atol = 1e-7 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def test_the_cayley_map_of_what_is_not_finite_is_no_error():
    A = skew(torch.randn(2, 5, 5))
    A[0, 1, 2] = torch.inf
    W = cayley(A)
    assert not W[0].isfinite().all()
    assert orthogonality_error(W[1]) < 1e-5


class TestInitialValues:
    def test_cayley_gives_rotations_by_up_to_a_quarter_turn(self):
        torch.manual_seed(0)
        angles = torch.linalg.eigvals(cayley(skew(initial_skew(800, "cayley")))).angle().abs()
        assert angles.max() < math.pi / 2
        assert angles.mean().item() == pytest.approx(math.pi / 4, rel=0.05)

    def test_henaff_fills_the_pairs_with_angles_of_the_whole_circle(self):
        torch.manual_seed(0)
        X = initial_skew(801, "henaff")
        pairs = X[range(0, 800, 2), range(1, 801, 2)]
        assert X.count_nonzero() == 400
        assert pairs.abs().max() <= math.pi
        assert pairs.abs().mean().item() == pytest.approx(math.pi / 2, rel=0.1)

    @pytest.mark.parametrize("n", [1, 2, 7, 8])
    def test_random_is_the_logarithm_of_a_rotation(self, n):
        Q = random_rotation(n).double()
        torch.testing.assert_close(torch.matrix_exp(rotation_logarithm(Q)), Q, atol=1e-5, rtol=0)
        assert torch.linalg.det(Q).item() == pytest.approx(1, abs=1e-5)

    def test_random_rotations_have_the_angles_of_the_haar_measure(self):
        torch.manual_seed(0)
        draws = torch.stack([initial_skew(8, "random") for _ in range(300)])
        angles = torch.linalg.eigvals(skew(draws)).imag.abs()
        assert angles.mean().item() == pytest.approx(math.pi / 2, abs=0.04)

    @pytest.mark.parametrize(("rows", "columns"), [(7, 3), (3, 7), (4, 4), (0, 5), (5, 0)])
    def test_semi_orthogonal_has_orthonormal_rows_or_columns(self, rows, columns):
        M = semi_orthogonal(rows, columns)
        assert M.shape == (rows, columns)
        gram = M.mT @ M if rows >= columns else M @ M.mT
        torch.testing.assert_close(gram, torch.eye(min(rows, columns)))

    @pytest.mark.parametrize(
        ("initial", "deviation"),
        [
            ("small_uniform", 0.01 / 3**0.5),
            ("wide_uniform", 0.1 / 3**0.5),
            ("fan_in_uniform", (1 / 600) ** 0.5),
            ("tiny_normal", 0.001),
            ("truncated_normal", 0.1 * 0.8796),
            ("orthogonal", (1 / 300) ** 0.5),
            ("glorot_uniform", (2 / 500) ** 0.5),
            ("glorot_normal", (2 / 500) ** 0.5),
            ("kaiming_normal", (2 / 200) ** 0.5),
        ],
    )
    def test_draws_have_the_spread_of_their_name(self, initial, deviation):
        torch.manual_seed(0)
        assert draw(300, 200, initial).std().item() == pytest.approx(deviation, rel=0.02)

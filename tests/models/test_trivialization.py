"""Orthogonal matrices trained as B exp(A): the exponential, its gradient, and bases that move."""

import pytest
import torch

from eigensweep.models.matrices.exponential import exponential
from eigensweep.models.matrices.orthogonal import orthogonality_error, skew


def random_skew(n, norm, dtype=torch.float64):
    A = skew(torch.randn(n, n, dtype=torch.float64))
    return (A * norm / torch.linalg.matrix_norm(A, ord=2)).to(dtype)


def by_eigenvalues(A):
    values, vectors = torch.linalg.eigh(-1j * A.double())
    return ((vectors * torch.exp(1j * values)) @ vectors.mH).real


def frechet(A, E):
    """Return the derivative of exp at A in the direction E, a corner of a larger exponential."""
    n = len(A)
    block = torch.cat((torch.cat((A, E), 1), torch.cat((torch.zeros_like(A), A), 1)))
    return torch.matrix_exp(block)[:n, n:]


class TestExponential:
    @pytest.mark.parametrize("norm", [0.0, 1e-6, 0.03, 0.3, 3.0, 100.0])
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 2e-13), (torch.float32, 2e-5)])
    def test_it_is_the_exponential_of_the_eigenvalues(self, norm, dtype, close):
        A = random_skew(30, norm, dtype)
        found = exponential(A)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), by_eigenvalues(A), atol=close, rtol=0)

    @pytest.mark.parametrize("norm", [1e-3, 0.03, 0.5, 2.0, 20.0])
    @pytest.mark.parametrize("n", [1, 2, 9])
    def test_its_gradient_is_the_skew_part_of_the_frechet_derivative_at_minus_a(self, n, norm):
        A = random_skew(n, norm) if n > 1 else torch.zeros(1, 1, dtype=torch.float64)
        G = torch.randn(n, n, dtype=torch.float64)
        A.requires_grad_()
        (found,) = torch.autograd.grad(exponential(A), A, G)
        expected = frechet(A.detach().mT, G)
        expected = (expected - expected.mT) / 2
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)

    @pytest.mark.parametrize("norm", [1.0, 3.0, 6.0, 50.0])
    def test_large_float32_matrices_are_orthogonal_and_turn_by_the_right_angles(self, norm):
        A = random_skew(400, norm, torch.float32)
        W = exponential(A)
        assert orthogonality_error(W) < 5e-6
        torch.testing.assert_close(W.double(), by_eigenvalues(A), atol=1e-6 * max(3, norm), rtol=0)

    @pytest.mark.parametrize("norm", [1.0, 3.0, 6.0, 50.0])
    def test_float32_gradients_are_those_of_float64(self, norm):
        A, G = random_skew(100, norm, torch.float32).requires_grad_(), torch.randn(100, 100)
        double = A.detach().double().requires_grad_()
        (found,) = torch.autograd.grad(exponential(A), A, G)
        (expected,) = torch.autograd.grad(exponential(double), double, G.double())
        scale = expected.abs().max()
        torch.testing.assert_close(found.double() / scale, expected / scale, atol=3e-5, rtol=0)

    @pytest.mark.parametrize("norm", [1e3, 1e5, 1e8])
    @pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-14), (torch.float32, 5e-6)])
    def test_it_is_orthogonal_however_far_training_has_gone(self, norm, dtype, close):
        A = random_skew(30, norm, dtype).requires_grad_()
        W = exponential(A)
        W.sum().backward()
        assert orthogonality_error(W) < close
        assert A.grad.isfinite().all()
        expected = by_eigenvalues(A.detach())
        rounding = 4 * torch.finfo(dtype).eps * norm
        torch.testing.assert_close(W.double(), expected, atol=rounding, rtol=0)

    def test_a_lane_that_is_not_finite_leaves_the_others_as_they_are(self):
        A = random_skew(6, 50.0)
        W = exponential(torch.stack((torch.full_like(A, torch.nan), A)))
        assert W[0].isnan().all()
        assert torch.equal(W[1], exponential(A))

    @pytest.mark.parametrize("value", [torch.nan, torch.inf])
    def test_what_is_not_finite_gives_nan_and_no_error(self, value):
        A = random_skew(4, 1.0)
        A[0, 1] = value
        A.requires_grad_()
        exponential(A).sum().backward()
        assert A.grad.isnan().any()

    def test_a_matrix_without_entries_is_left_alone(self):
        assert exponential(torch.zeros(0, 0)).shape == (0, 0)

    def test_lanes_of_different_norms_are_single_matrices(self):
        A = torch.stack([random_skew(6, norm) for norm in (0.01, 5.0)]).requires_grad_()
        G = torch.randn(2, 6, 6, dtype=torch.float64)
        W = torch.vmap(exponential)(A)
        (gradient,) = torch.autograd.grad(W, A, G)
        inner = torch.vmap(torch.func.grad(lambda A, G: (exponential(A) * G).sum()))(A, G)
        for i in range(2):
            alone = A[i].detach().requires_grad_()
            torch.testing.assert_close(W[i], exponential(alone), atol=1e-13, rtol=0)
            (expected,) = torch.autograd.grad(exponential(alone), alone, G[i])
            torch.testing.assert_close(gradient[i], expected, atol=1e-12, rtol=0)
            torch.testing.assert_close(inner[i], expected, atol=1e-12, rtol=0)

    def test_a_second_derivative_is_refused_not_wrong(self):
        A = random_skew(4, 1.0).requires_grad_()
        (gradient,) = torch.autograd.grad(exponential(A).pow(2).sum(), A, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_the_gradient_of_a_trivialised_matrix_is_the_closed_form(nets):
    model = nets.generic("exprnn", trivialization="dynamic", rebase_every=1)
    A, base = model.recurrent.A, model.recurrent.base
    assert not torch.allclose(base, torch.eye(10, dtype=base.dtype))
    with torch.no_grad():
        A.add_(torch.randn_like(A))
    G = torch.randn(10, 10, dtype=torch.float64)
    (found,) = torch.autograd.grad(model.recurrent_matrix(), A, G)
    M = frechet(-skew(A.detach()), base.mT @ G)
    torch.testing.assert_close(found, (M - M.mT).triu(1), atol=1e-10, rtol=0)


def update(model, times):
    """Return the matrix after so many updates, each with a step that differs."""
    torch.manual_seed(4)
    for _ in range(times):
        with torch.no_grad():
            model.recurrent.A.add_(0.1 * torch.randn(10, 10, dtype=torch.float64))
        model.after_update({})
    return model.recurrent_matrix()


class TestMovingBase:
    def test_it_starts_at_the_matrix_that_a_static_one_starts_with(self, nets):
        static = nets.build("exprnn", seed=3)
        dynamic = nets.build("exprnn", seed=3, trivialization="dynamic")
        assert not dynamic.recurrent.A.any()
        assert torch.equal(dynamic.recurrent.base, static.recurrent_matrix())
        torch.testing.assert_close(dynamic.recurrent_matrix(), static.recurrent_matrix())

    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_moving_it_leaves_the_matrix_where_it_was(self, nets, parametrization):
        fields = {"trivialization": "dynamic", "parametrization": parametrization}
        model = nets.build("exprnn", rebase_every=3, **fields).double()
        update(model, 2)
        with torch.no_grad():
            model.recurrent.A.add_(0.1)
            before, base = model.recurrent_matrix(), model.recurrent.base.clone()
            model.after_update({})
        torch.testing.assert_close(model.recurrent_matrix(), before, atol=1e-14, rtol=0)
        assert torch.equal(model.recurrent.base, before)
        assert not torch.equal(base, before)
        assert not model.recurrent.A.any()

    def test_between_two_moves_only_a_changes(self, nets):
        model = nets.build("exprnn", trivialization="dynamic", rebase_every=3).double()
        base = model.recurrent.base.clone()
        update(model, 2)
        assert torch.equal(model.recurrent.base, base)
        assert model.recurrent.A.any()

    @pytest.mark.parametrize(("updates", "projected"), [(2, False), (4, True), (6, False)])
    def test_the_first_projection_follows_m_minus_one_moves(self, nets, updates, projected):
        fields = {"trivialization": "dynamic", "rebase_every": 2, "project_every": 3}
        model = nets.build("exprnn", **fields).double()
        update(model, updates - 1)
        model.recurrent.base *= 1.01
        model.after_update({})
        error = orthogonality_error(model.recurrent.base)
        assert bool(error < 1e-13) is projected

    def test_where_and_how_far_it_is_belongs_to_the_state(self, nets):
        model = nets.build("exprnn", trivialization="dynamic", rebase_every=2)
        assert {"recurrent.base", "recurrent.updates"} <= set(model.state_dict())
        assert set(nets.build("exprnn").state_dict()) & {"recurrent.base"} == set()

"""Proposition 3.2: the gradient through the spectral radius, and where it has none."""

import pytest
import torch

from eigensweep.models.matrices.spectral_radius import (
    initial_short_block,
    spectral_normalise,
    spectral_radius,
)

ON, OFF = torch.tensor(True), torch.tensor(False)
KINDS = ["real", "complex pair", "negative"]


def random_matrix(s, kind, seed):
    """Return a T whose dominant eigenvalue is of that kind, ahead of the rest by 5 % or more."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        T = torch.randn(s, s, generator=generator, dtype=torch.float64)
        values = torch.linalg.eigvals(T)
        values = values[values.abs().argsort(descending=True)]
        first = values[0]
        found = "complex pair" if first.imag != 0 else "real" if first.real > 0 else "negative"
        rest = values[2 if found == "complex pair" else 1 :]
        if found == kind and rest.abs().max() < 0.95 * first.abs():
            return T.requires_grad_()


@pytest.mark.parametrize("eps", [0.0, 0.3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("s", [5, 8, 12])
class TestGradient:
    def test_it_agrees_with_autograd_through_all_eigenvalues(self, s, kind, eps):
        T, G = random_matrix(s, kind, seed=s), torch.randn(s, s, dtype=torch.float64)
        W, multiple = spectral_normalise(T, ON, eps)
        expected = T / (torch.linalg.eigvals(T).abs().max() + eps)
        torch.testing.assert_close(W, expected, atol=1e-13, rtol=0)
        (found,) = torch.autograd.grad(W, T, G)
        (wanted,) = torch.autograd.grad(expected, T, G)
        torch.testing.assert_close(found, wanted, atol=1e-8, rtol=0)
        assert not multiple

    @pytest.mark.quick_cases(6)
    def test_it_agrees_with_central_differences(self, s, kind, eps):
        T, G = random_matrix(s, kind, seed=100 + s), torch.randn(s, s, dtype=torch.float64)
        (found,) = torch.autograd.grad(spectral_normalise(T, ON, eps)[0], T, G)
        numeric = torch.zeros(s, s, dtype=torch.float64)
        for i in range(s):
            for j in range(s):
                step = torch.zeros(s, s, dtype=torch.float64)
                step[i, j] = 1e-6
                with torch.no_grad():
                    above = (spectral_normalise(T + step, ON, eps)[0] * G).sum()
                    below = (spectral_normalise(T - step, ON, eps)[0] * G).sum()
                numeric[i, j] = (above - below) / 2e-6
        torch.testing.assert_close(found, numeric, atol=1e-5, rtol=0)

    def test_it_is_the_formula_of_the_proposition(self, s, kind, eps):
        T, G = random_matrix(s, kind, seed=200 + s), torch.randn(s, s, dtype=torch.float64)
        (found,) = torch.autograd.grad(spectral_normalise(T, ON, eps)[0], T, G)
        values, right = torch.linalg.eig(T.detach())
        for k in (values.abs() > values.abs().max() - 1e-9).nonzero().flatten():
            u, w = right[:, k], torch.linalg.inv(right)[k]  # λ or its conjugate: the same
            C = (values[k].conj() * torch.outer(w, u) / (w @ u)).real
            rho = values[k].abs()
            W = T.detach() / (rho + eps)
            expected = (G - (G * W).sum() * C / rho) / (rho + eps)
            torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
            assert (C * T).sum().item() == pytest.approx(rho.item() ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_without_eps_the_gradient_is_orthogonal_to_t(kind):
    T, G = random_matrix(9, kind, seed=3), torch.randn(9, 9, dtype=torch.float64)
    W = spectral_normalise(T, ON)[0]
    (gradient,) = torch.autograd.grad(W, T, G)
    assert abs((gradient * T).sum()) < 1e-12
    torch.testing.assert_close(spectral_normalise(2 * T, ON)[0], W)


def test_before_the_switch_w_is_t_and_nothing_is_decomposed(monkeypatch):
    monkeypatch.setattr(torch.linalg, "eigvals", None)  # would be a TypeError if called
    T, G = torch.randn(6, 6, requires_grad=True), torch.randn(6, 6)
    W, _ = spectral_normalise(T, OFF)
    assert torch.equal(W, T)
    assert torch.equal(torch.autograd.grad(W, T, G)[0], G)


class TestNearlyMultipleEigenvalues:
    T = torch.tensor([[0.7, 1.0], [1e-20, 0.7]], dtype=torch.float64)

    def test_the_radius_is_then_a_constant_and_the_event_is_told(self):
        T, G = self.T.clone().requires_grad_(), torch.randn(2, 2, dtype=torch.float64)
        W, multiple = spectral_normalise(T, ON)
        assert multiple
        torch.testing.assert_close(W, T / 0.7)
        torch.testing.assert_close(torch.autograd.grad(W, T, G)[0], G / 0.7)

    def test_or_t_is_returned_as_it_is(self):
        T, G = self.T.clone().requires_grad_(), torch.randn(2, 2, dtype=torch.float64)
        W, multiple = spectral_normalise(T, ON, fallback="unnormalised")
        assert multiple
        assert torch.equal(W, T)
        assert torch.equal(torch.autograd.grad(W, T, G)[0], G)
        with torch.no_grad():
            assert torch.equal(spectral_normalise(T, ON, fallback="unnormalised")[0], T)

    def test_enrnn_counts_the_events_of_its_training_steps(self, nets):
        model = nets.build("enrnn", hidden_size=4, short_size=2, negative_ones=1).double()
        model.T.data, model.switched = 2 * self.T, ON.clone()
        x = nets.input(model.shapes)
        model(x)[0].sum().backward()
        model(x)
        model.eval()(x)
        assert model.fallback_events == 2
        assert model.T.grad.isfinite().all()
        assert model.constraint_report()["fallback_events"] == 2

    def test_equal_eigenvalues_with_vectors_have_a_finite_gradient(self):
        T = 0.7 * torch.eye(2, dtype=torch.float64)
        W, _ = spectral_normalise(T.requires_grad_(), ON)
        assert torch.autograd.grad(W.sum(), T)[0].isfinite().all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_matrix_that_is_not_finite_gives_nan_and_no_error(value):
    T = torch.eye(3)
    T[0, 1] = value
    W, _ = spectral_normalise(T.requires_grad_(), ON)
    W.sum().backward()
    assert W.isnan().any()


def test_a_matrix_without_entries_is_left_alone():
    empty = torch.zeros(0, 0, requires_grad=True)
    assert spectral_normalise(empty, ON)[0].shape == (0, 0)
    assert spectral_radius(empty) == 0


def test_lanes_of_matrices_are_single_matrices(nets):
    T = torch.stack([random_matrix(6, kind, seed=1).detach() for kind in KINDS]).requires_grad_()
    switched, G = torch.tensor([True, False, True]), torch.randn(3, 6, 6, dtype=torch.float64)
    W, _ = torch.vmap(lambda T, on: spectral_normalise(T, on, 0.1))(T, switched)
    (gradient,) = torch.autograd.grad(W, T, G)
    inner = torch.vmap(
        torch.func.grad(lambda T, on, G: (spectral_normalise(T, on, 0.1)[0] * G).sum())
    )(T, switched, G)
    for i in range(3):
        alone = T[i].detach().requires_grad_()
        W_i, _ = spectral_normalise(alone, switched[i], 0.1)
        torch.testing.assert_close(W[i], W_i, atol=1e-14, rtol=0)
        (expected,) = torch.autograd.grad(W_i, alone, G[i])
        torch.testing.assert_close(gradient[i], expected, atol=1e-13, rtol=0)
        torch.testing.assert_close(inner[i], expected, atol=1e-13, rtol=0)


def test_a_second_derivative_is_refused_not_wrong():
    T = random_matrix(5, "real", seed=0)
    W, _ = spectral_normalise(T, ON)
    (gradient,) = torch.autograd.grad(W.pow(2).sum(), T, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


class TestEquation5:
    def test_moduli_fill_the_interval_and_angles_the_circle(self):
        torch.manual_seed(0)
        values = torch.linalg.eigvals(initial_short_block(1200))
        modulus, angle = values.abs(), values.angle()
        for low in (0.0, 0.25, 0.5, 0.75):
            share = ((modulus >= low) & (modulus < low + 0.25)).double().mean()
            assert share == pytest.approx(0.25, abs=0.05)
        quadrants = torch.bucketize(angle, torch.tensor([-1.5708, 0.0, 1.5708])).bincount()
        assert quadrants.double().div(1200).tolist() == pytest.approx([0.25] * 4, abs=0.05)

    @pytest.mark.parametrize("s", [0, 1, 2, 7, 20])
    def test_it_is_normal_with_radius_below_one(self, s):
        T = initial_short_block(s)
        torch.testing.assert_close(T @ T.mT, T.mT @ T)
        assert s == 0 or 0 < spectral_radius(T) < 1

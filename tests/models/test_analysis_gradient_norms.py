"""The heat maps against Jacobians by other means, and Theorem 3.1."""

from __future__ import annotations

import pytest
import torch

from eigensweep.models import MODELS
from eigensweep.models.analysis.gradient_norms import decay_bound, gradient_norms, matrix_norms

STEPS, BATCH = 7, 3


def jacobian(model, x):
    """Return dh_τ / dx_t of each sequence by torch.autograd: (τ, t, B, n, m), n real parts."""

    def states(z):
        h = model.states(z)
        return torch.view_as_real(h).flatten(-2) if h.is_complex() else h

    J = torch.autograd.functional.jacobian(states, x)  # (τ, B, n, t, B, m)
    each = torch.arange(x.shape[1])
    return J[:, each, :, :, each].permute(1, 3, 0, 2, 4)


@pytest.fixture
def enrnn(nets):
    shapes = nets.shapes(input_size=2, input_kind="values", readout="last")
    return nets.generic("enrnn", shapes, short_size=4, negative_ones=2)


def test_the_maps_are_norms_of_the_blocks_of_the_jacobian(enrnn, nets):
    x = nets.input(enrnn.shapes, STEPS, BATCH).double()

    found = gradient_norms(enrnn, x)

    J = jacobian(enrnn, x)
    assert list(found) == ["long", "short"]
    for name, block in {"long": J[..., :6, :], "short": J[..., 6:, :]}.items():
        expected = torch.linalg.matrix_norm(block, 2)
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-12)


def test_a_derivative_beyond_all_bounds_has_no_finite_norm():
    J = torch.randn(3, 3, 4, dtype=torch.float64)
    expected = torch.linalg.matrix_norm(J[0], 2)
    J[1, 0, 0], J[2, 1, 1] = torch.inf, torch.nan
    found = matrix_norms(J, "spectral")
    torch.testing.assert_close(found[0], expected, rtol=1e-12, atol=0)
    assert not found[1:].isfinite().any()


def test_the_maps_agree_with_finite_differences(enrnn, nets):
    x = nets.input(enrnn.shapes, STEPS, 1).double()
    found = gradient_norms(enrnn, x, "frobenius")
    squares = torch.zeros(STEPS, STEPS, 10, dtype=torch.float64)
    for t in range(STEPS):
        for feature in range(2):
            step = torch.zeros_like(x)
            step[t, 0, feature] = 1e-6
            change = enrnn.states(x + step) - enrnn.states(x - step)
            squares[:, t] += (change[:, 0] / 2e-6).square()

    torch.testing.assert_close(
        found["long"][..., 0], squares[..., :6].sum(-1).sqrt(), rtol=1e-7, atol=1e-8
    )
    torch.testing.assert_close(
        found["short"][..., 0], squares[..., 6:].sum(-1).sqrt(), rtol=1e-7, atol=1e-8
    )


def test_no_state_depends_on_a_later_input(enrnn, nets):
    found = gradient_norms(enrnn, nets.input(enrnn.shapes, STEPS, BATCH).double())
    assert not torch.triu(found["long"].sum(-1), 1).any()


def test_pieces_give_what_the_whole_gives(enrnn, nets, monkeypatch):
    x = nets.input(enrnn.shapes, STEPS, BATCH).double()
    whole = gradient_norms(enrnn, x)["long"]
    monkeypatch.setattr("eigensweep.models.analysis.gradient_norms.MOST_ENTRIES", 1)
    torch.testing.assert_close(gradient_norms(enrnn, x)["long"], whole)


@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith("constructed")])
@pytest.mark.parametrize("kind", ["symbols", "values"])
@pytest.mark.quick_cases(8)
def test_every_model_has_maps_that_match_its_jacobian(nets, name, kind):
    shapes = nets.shapes(input_size=4, output_size=3, input_kind=kind)
    model = nets.generic(name, shapes)
    x = nets.input(shapes, 5, 2)
    values = x.double() if kind == "values" else torch.nn.functional.one_hot(x, 4).double()

    found = gradient_norms(model, x.double() if kind == "values" else x, "frobenius")

    expected = torch.linalg.matrix_norm(jacobian(model, values))
    total = torch.stack(list(found.values())).square().sum(0).sqrt()
    torch.testing.assert_close(total, expected, rtol=1e-9, atol=1e-11)


def test_a_spectral_norm_is_the_largest_singular_value():
    generator = torch.Generator().manual_seed(0)
    J = torch.randn(20, 2, 5, generator=generator, dtype=torch.float64)
    J = J * torch.logspace(-300, 300, 20, dtype=torch.float64)[:, None, None]
    expected = torch.linalg.svdvals(J)[..., 0]
    torch.testing.assert_close(matrix_norms(J, "spectral"), expected, rtol=1e-12, atol=0)


class TestTheorem31:
    @pytest.mark.parametrize("activation", ["relu", "modrelu"])
    def test_the_short_state_decays_as_fast_as_its_matrix_is_small(self, nets, activation):
        shapes = nets.shapes(input_size=2, input_kind="values", readout="last")
        for seed in range(10):
            model = nets.generic(
                "enrnn", shapes, seed, short_size=6, negative_ones=1, activation=activation
            )
            with torch.no_grad():
                model.switched.fill_(False)
                model.T.mul_(0.9 / torch.linalg.matrix_norm(model.T, 2))
                U = model.input_matrix()[4:]
            x = nets.input(shapes, 8, 4).double()

            short = gradient_norms(model, x)["short"]

            for tau in range(8):
                for t in range(tau + 1):
                    bound = 0.9 ** (tau - t) * torch.linalg.matrix_norm(U, 2)
                    assert (short[tau, t] <= bound * (1 + 1e-9)).all()

    def test_the_bound_is_a_power_for_each_delay(self):
        W = torch.diag(torch.tensor([0.5, -0.25]))
        U = torch.tensor([[0.0], [3.0]])
        expected = torch.tensor([[3.0, 0.0, 0.0], [1.5, 3.0, 0.0], [0.75, 1.5, 3.0]])
        torch.testing.assert_close(decay_bound(W, U, 3), expected)

    def test_a_radius_below_one_bounds_nothing_at_first(self):
        W = torch.tensor([[0.5, 5.0], [0.0, 0.5]], dtype=torch.float64)
        norms = [
            torch.linalg.matrix_norm(torch.linalg.matrix_power(W, k), 2).item() for k in range(1, 7)
        ]
        assert norms == pytest.approx([5.05, 5.01, 3.75, 2.50, 1.56, 0.94], abs=0.01)
        assert decay_bound(W, torch.eye(2).double(), 3)[2, 0] >= norms[1]

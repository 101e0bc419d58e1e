"""Products of reflections, and the two networks made of them."""

import pytest
import torch

from eigensweep.models.matrices.householder import normalise, reflection_parameters, reflections
from eigensweep.models.matrices.orthogonal import orthogonality_error


def same(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def columns(n, r):
    return torch.randn(n, r, dtype=torch.float64).tril()


def reflection(u):
    return torch.eye(len(u), dtype=u.dtype) - 2 * torch.outer(u, u) / (u @ u)


@pytest.mark.parametrize(("n", "r"), [(1, 1), (5, 1), (6, 3), (6, 6)])
def test_the_compact_form_is_the_product_the_last_column_first(n, r):
    u = columns(n, r)
    W = torch.eye(n, dtype=torch.float64)
    for k in range(r):
        W = W @ reflection(u[:, k])
    same(reflections(u), W)
    assert torch.linalg.det(W).item() == pytest.approx((-1) ** r)


def test_the_reflections_and_their_reverse_are_the_identity():
    u = columns(7, 4)
    back = torch.eye(7, dtype=torch.float64)
    for k in reversed(range(4)):
        back = back @ reflection(u[:, k])
    same(back @ reflections(u), torch.eye(7, dtype=torch.float64))


def test_neither_lengths_nor_the_upper_triangle_matter():
    u = columns(7, 4)
    other = normalise(u + torch.ones_like(u).triu(1))
    same(other.norm(dim=0), torch.ones(4, dtype=torch.float64))
    same(reflections(other), reflections(u))


def test_the_gradient_is_orthogonal_to_the_columns():
    u, G = columns(7, 4).requires_grad_(), torch.randn(7, 7, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(reflections(u), u, G)
    same((gradient * u).sum(0), torch.zeros(4, dtype=torch.float64))
    assert not gradient.triu(1).any()


def test_a_zero_column_reflects_nothing_and_stays_finite():
    u = columns(5, 3)
    u[:, 1] = 0
    same(reflections(u), reflection(u[:, 0]) @ reflection(u[:, 2]))
    u.requires_grad_()
    reflections(u).sum().backward()
    assert u.grad.isfinite().all()
    assert normalise(u).isfinite().all()


@pytest.mark.parametrize(("n", "r"), [(5, 1), (6, 3), (6, 6)])
def test_parameters_are_counted_on_and_below_the_diagonal(n, r):
    assert reflection_parameters(n, r) == torch.ones(n, r).tril().count_nonzero()


@pytest.mark.parametrize("r", [1, 2, 9, 10])
def test_ornns_last_sign_decides_its_determinant(nets, r):
    model = nets.generic("ornn", reflections=r)
    signs = (-1) ** r if r < 10 else -model.u[-1, -1].sign().item()
    W = model.recurrent_matrix()
    assert torch.linalg.det(W).item() == pytest.approx(signs)
    if r == 10:
        with torch.no_grad():
            model.u[-1, -1] *= -1
        assert torch.linalg.det(model.recurrent_matrix()).item() == pytest.approx(-signs)


def test_ornn_trains_its_initial_state_and_starts_there(nets):
    model = nets.generic("ornn", nets.shapes(input_kind="values"))
    with torch.no_grad():
        model.U.zero_()
    h = model.states(torch.zeros(1, 3, 5, dtype=torch.float64))[0]
    z = model.recurrent_matrix() @ model.h0 + model.b
    same(h, torch.where(z > 0, z, 0.1 * z).expand(3, 10))
    h.sum().backward()
    assert model.h0.grad.all()


@pytest.mark.parametrize("fields", [{"margin": 0.3}, {"margin": 0.0}])
def test_spectral_rnn_starts_orthogonal(nets, fields):
    assert orthogonality_error(nets.build("spectral_rnn", **fields).recurrent_matrix()) < 1e-5


def test_spectral_rnn_without_a_margin_stays_orthogonal(nets):
    model = nets.generic("spectral_rnn", margin=0.0)
    assert model.p.any()
    assert orthogonality_error(model.recurrent_matrix()) < 1e-12


def test_spectral_rnns_singular_values_are_its_sigma(nets):
    model = nets.generic("spectral_rnn", margin=0.3)
    model.p.data.mul_(100)
    sigma = 1 + 0.6 * (torch.sigmoid(model.p) - 0.5)
    same(torch.linalg.svdvals(model.recurrent_matrix()), sigma.sort(descending=True)[0])
    assert 0.7 - 1e-12 <= sigma.min() < 0.71
    assert 1.29 < sigma.max() <= 1.3 + 1e-12


@pytest.mark.parametrize("name", ["ornn", "spectral_rnn"])
def test_an_update_is_followed_by_columns_of_length_one(nets, name):
    model = nets.build(name)
    for u in (p for key, p in model.named_parameters() if key in "uPQ"):
        with torch.no_grad():
            u.add_(torch.randn_like(u))
        model.after_update({})
        same(u.norm(dim=0), torch.ones(4), 1e-6)
        assert not u.triu(1).any()

"""nnRNN: its eigenvalues, its penalty, and how far it is from an orthogonal network."""

import pytest
import torch


def eye(n):
    return torch.eye(n, dtype=torch.float64)


def test_t_leaves_the_eigenvalues_to_gamma_and_theta(nets):
    model = nets.generic("nnrnn")
    values = torch.linalg.eigvals(model.recurrent_matrix().detach())
    gamma, theta = model.gamma.detach(), model.theta.detach()
    expected = torch.polar(gamma, theta)
    expected = torch.cat((expected, expected.conj()))
    distances = (values[:, None] - expected).abs()
    assert distances.amin(0).max() < 1e-6
    assert distances.amin(1).max() < 1e-6
    normality = model.recurrent_matrix() @ model.recurrent_matrix().mT
    assert not torch.allclose(normality, model.recurrent_matrix().mT @ model.recurrent_matrix())


def test_the_mask_of_the_code_lets_t_move_the_moduli(nets):
    model = nets.build("nnrnn", hidden_size=2, mask="code").double()
    with torch.no_grad():
        model.theta.fill_(0.9)
        model.T.fill_(0.5)
    moduli = torch.linalg.eigvals(model.recurrent_matrix()).abs()
    expected = (1 + 0.5 * model.theta.sin()).sqrt()
    torch.testing.assert_close(moduli, expected.expand(2), atol=1e-12, rtol=0)


def test_without_t_and_with_gamma_one_it_is_orthogonal(nets):
    model = nets.generic("nnrnn")
    with torch.no_grad():
        model.T.zero_()
        model.gamma.fill_(1)
    W = model.recurrent_matrix()
    torch.testing.assert_close(W.mT @ W, eye(10), atol=1e-10, rtol=0)
    with torch.no_grad():
        model.theta.zero_()
    torch.testing.assert_close(model.recurrent_matrix(), eye(10), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("form", "expected"), [("l2", 0.1 * 5 * 0.25), ("l1", 0.1 * 5 * 0.5)])
def test_the_penalty_pulls_the_radii_to_one(nets, form, expected):
    model = nets.build("nnrnn", gamma_penalty=form, gamma_weight=0.1)
    assert model.penalty() == 0
    model.penalty().backward()
    assert not model.gamma.grad.any()
    model.gamma.data.fill_(1.5)
    assert model.penalty().item() == pytest.approx(expected)
    model.penalty().backward()
    assert (model.gamma.grad > 0).all()


def test_t_has_a_group_of_its_own_with_its_decay(nets):
    model = nets.build("nnrnn", t_decay=0.01)
    orth, t, main = model.param_groups()
    assert (orth.name, main.name, t.options) == ("orth", "main", {"weight_decay": 0.01})
    assert orth.params == [model.A]
    assert t.params == [model.T]
    assert (orth.options, main.options) == ({}, {})


def test_it_starts_orthogonal_with_the_named_logarithm_of_p(nets):
    assert not nets.build("nnrnn", recurrent_init="identity").A.any()
    model = nets.build("nnrnn", recurrent_init="henaff")
    assert model.A.count_nonzero() == 5
    report = model.constraint_report()
    assert report["gamma_min"] == report["gamma_max"] == 1
    assert report["norm"].item() == pytest.approx(1, abs=1e-5)
    assert model.theta.max() - model.theta.min() > 1

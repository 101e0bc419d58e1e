"""LT-RNN: how it starts, its pool, and its three rules of training."""

import math

import pytest
import torch
from helpers.agreement import recur_readably

from eigensweep.models.lt_rnn import pool
from eigensweep.models.matrices.orthogonal import orthogonality_error
from eigensweep.models.recurrence import ungated

VALUES = {"input_kind": "values"}


def same(found, expected, atol=1e-12):
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def gradients(model, x):
    model.zero_grad()
    model(x)[0].pow(2).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def test_it_starts_orthogonal_or_as_the_identity(nets):
    assert orthogonality_error(nets.build("lt_rnn").W) < 1e-6
    assert torch.equal(nets.build("lt_rnn", recurrent_init="identity").W, torch.eye(10))


def test_it_is_linear_in_symbols(nets):
    model = nets.generic("lt_rnn")
    x = nets.input(model.shapes)
    W, U = model.W, model.U
    powers = (torch.linalg.matrix_power(W, 6 - t) @ U[:, x[t]] for t in range(7))
    same(model.states(x)[-1], sum(powers).mT)


@pytest.mark.parametrize("kind", ["symbols", "values"])
def test_with_nothing_read_from_it_the_pool_changes_nothing(nets, kind):
    shapes = nets.shapes(input_kind=kind)
    plain = nets.generic("lt_rnn", shapes)
    pooled = nets.generic("lt_rnn", shapes, pooling=True)
    pooled.load_state_dict({**plain.state_dict(), "V_2": torch.zeros(3, 5)})
    x = nets.input(shapes).to(torch.int64 if kind == "symbols" else torch.float64)
    same(pooled(x)[0], plain(x)[0])


def test_the_pool_does_not_see_rotations_inside_pairs():
    h = torch.randn(3, 8, dtype=torch.float64)
    rotations = []
    for angle in (0.3, 1.2, -2.0, 3.0):
        c, s = math.cos(angle), math.sin(angle)
        rotations.append(torch.tensor([[c, -s], [s, c]], dtype=torch.float64))
    same(pool(h @ torch.block_diag(*rotations)), pool(h))


@pytest.mark.parametrize("readout", ["all", "last"])
def test_pooled_logits_are_read_from_state_and_pool(nets, readout):
    shapes = nets.shapes(readout=readout)
    model = nets.generic("lt_rnn", shapes, pooling=True)
    x = nets.input(shapes)
    H = model.states(x)
    h = H if readout == "all" else H[-1]
    expected = h @ model.V.mT + pool(h) @ model.V_2.mT
    logits, state = model(x)
    torch.testing.assert_close(logits, expected, atol=1e-12, rtol=0)
    torch.testing.assert_close(state, H[-1], atol=1e-12, rtol=0)
    gradients = [
        torch.autograd.grad(y.sin().sum(), [model.W, model.U, model.V, model.V_2])
        for y in (logits, expected)
    ]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)


def test_the_pool_has_no_slope_at_zero():
    h = torch.zeros(4, requires_grad=True)
    pool(h).sum().backward()
    assert not h.grad.any()


@pytest.mark.parametrize("kind", ["symbols", "values"])
@pytest.mark.parametrize("fields", [{}, {"pooling": True}, {"activation_clip": 2.0}])
def test_a_scaled_gradient_is_divided_by_steps_but_at_the_end(nets, kind, fields):
    shapes = nets.shapes(input_kind=kind)
    x = nets.input(shapes).to(torch.int64 if kind == "symbols" else torch.float64)
    plain, scaled = (
        nets.generic("lt_rnn", shapes, scale_gradient=flag, **fields) for flag in (False, True)
    )
    assert torch.equal(plain(x)[0], scaled(x)[0])
    whole, part = gradients(plain, x), gradients(scaled, x)
    for name, gradient in whole.items():
        expected = gradient if name in ("V", "V_2", "c") else gradient / 7
        same(part[name], expected, 1e-12 * max(1.0, expected.norm().item()))


@pytest.mark.parametrize("peephole", ["none", "diagonal", "output_full"])
def test_lstms_gradients_are_scaled_as_the_linear_transitions(nets, peephole):
    x = nets.input(nets.shapes())
    plain, scaled = (
        nets.generic("lstm", scale_gradient=flag, peephole=peephole) for flag in (False, True)
    )
    assert torch.equal(plain(x)[0], scaled(x)[0])
    whole, part = gradients(plain, x), gradients(scaled, x)
    for name, gradient in whole.items():
        expected = gradient if name in ("V", "c") else gradient / 7
        same(part[name], expected, 1e-12 * max(1.0, expected.norm().item()))


def test_no_state_is_longer_than_the_clip(nets):
    model = nets.generic("lt_rnn", activation_clip=0.5, scale=1.0)
    free = nets.generic("lt_rnn", scale=1.0)
    x = nets.input(model.shapes)
    lengths = model.states(x).norm(dim=-1)
    assert lengths.max() <= 0.5 + 1e-12
    assert free.states(x).norm(dim=-1).max() > 0.5
    same(nets.generic("lt_rnn", activation_clip=1e6, scale=1.0)(x)[0], free(x)[0], 1e-10)


@pytest.mark.parametrize("backend", ["native", "torch", "reference"])
def test_a_state_as_long_as_the_clip_is_not_scaled(backend):
    """A step without input keeps the clipped length: the gradient is that of no clipping."""
    x = torch.zeros(3, 1, 1, dtype=torch.float64)
    x[0] = 5.0
    W, one = torch.eye(1, dtype=torch.float64).requires_grad_(), torch.ones(1, dtype=torch.float64)
    how = {"activation": "clipped", "readout": "last", "h0": torch.zeros_like(x[0])}
    leaves = (x, None, W, 0.3 * one, one[None], 0 * one)
    if backend == "reference":
        y, _ = recur_readably(*leaves, **how)
    else:
        y, _ = ungated.recur(*leaves, backend=backend, **how)
    assert torch.autograd.grad(y.sum(), W)[0].item() == pytest.approx(0.6)


class TestOrthogonalityPenalty:
    def test_a_step_descends_the_mean_over_its_unit_vectors(self, nets):
        fields = {"orthogonality_penalty": 2.0, "orthogonality_vectors": 50}
        model = nets.build("lt_rnn", **fields).double()
        with torch.no_grad():
            model.W.add_(0.1 * torch.randn(10, 10, dtype=torch.float64))
        before = model.W.detach().clone().requires_grad_()
        generator = torch.Generator().manual_seed(model.draws.item())
        X = torch.nn.functional.normalize(torch.randn(10, 50, generator=generator), dim=0).double()
        energy = ((before.mT @ before @ X - X) ** 2).sum() / 50
        (gradient,) = torch.autograd.grad(energy, before)
        model.after_update({"main": 0.01})
        same(model.W, before - 2 * 0.01 * gradient, 1e-7)

    def test_every_step_has_vectors_of_its_own(self, nets):
        model = nets.build("lt_rnn", orthogonality_penalty=1.0, orthogonality_vectors=1)
        start = 2 * torch.eye(10)
        steps = []
        for _ in range(2):
            model.W.data.copy_(start)
            model.after_update({"main": 0.01})
            steps.append(model.W.detach() - start)
        assert not torch.allclose(*steps)

    def test_many_steps_lead_to_an_orthogonal_matrix(self, nets):
        model = nets.build("lt_rnn", orthogonality_penalty=1.0)
        with torch.no_grad():
            model.W.add_(0.1 * torch.randn(10, 10))
        start = orthogonality_error(model.W)
        for _ in range(300):
            model.after_update({"main": 0.1})
        assert orthogonality_error(model.W) < 0.01 * start

    def test_without_it_an_update_changes_nothing(self, nets):
        model = nets.build("lt_rnn")
        before = model.W.detach().clone()
        model.after_update({"main": 0.1})
        assert torch.equal(model.W, before)

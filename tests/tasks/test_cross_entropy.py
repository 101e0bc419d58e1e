"""Cross-entropy in one pass against PyTorch's, and against its formula."""

import math

import pytest
import torch
from torch.nn import functional

from eigensweep.tasks.cross_entropy import cross_entropy

WIDTHS = {"narrow": 1.0, "wide": 300.0}
"""Spread of the logits: with the wide ones exp overflows unless each row is shifted."""


def draw(p=9, shape=(7, 5), spread=1.0, dtype=torch.float64, lanes=()):
    torch.manual_seed(p)
    logits = spread * torch.randn(*lanes, *shape, p, dtype=dtype)
    return logits.requires_grad_(), torch.randint(p, (*lanes, *shape))


@pytest.mark.parametrize("spread", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("p", [1, 2, 9, 50])
def test_value_and_gradient_are_those_of_pytorch(p, reduction, spread):
    logits, y = draw(p, spread=spread)
    loss = cross_entropy(logits, y, reduction=reduction)
    expected = functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction=reduction)
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=1e-12)
    found, wanted = (torch.autograd.grad(3 * x, logits)[0] for x in (loss, expected))
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    assert found.is_contiguous()


def test_it_is_minus_the_log_of_the_targets_probability():
    logits, y = torch.tensor([[1.0, 2.0, 4.0], [0.0, 5.0, 1.0]]), torch.tensor([1, 0])
    probabilities = [math.exp(2) / sum(map(math.exp, (1, 2, 4))), 1 / sum(map(math.exp, (0, 5, 1)))]
    expected = -sum(map(math.log, probabilities)) / 2
    assert cross_entropy(logits, y).item() == pytest.approx(expected)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("spoilt", [0.0, math.nan, math.inf])
def test_what_the_mask_leaves_out_has_no_effect(reduction, spoilt):
    logits, y = draw()
    mask = torch.arange(7)[:, None] < torch.tensor([7, 3, 0, 5, 1])
    expected = functional.cross_entropy(logits[mask], y[mask], reduction=reduction)
    (wanted,) = torch.autograd.grad(expected, logits)
    with torch.no_grad():
        logits[~mask] += spoilt
    loss = cross_entropy(logits, y, mask, reduction)
    torch.testing.assert_close(loss, expected, atol=1e-12, rtol=0)
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_a_mask_may_be_broadcast():
    logits, y = draw()
    mask = torch.tensor([True, False, True, True, False])
    expected = functional.cross_entropy(logits[:, mask].flatten(0, 1), y[:, mask].flatten())
    torch.testing.assert_close(cross_entropy(logits, y, mask), expected)


@pytest.mark.parametrize("spread", WIDTHS.values(), ids=WIDTHS)
def test_float32_is_as_precise_as_float32_is(spread):
    logits, y = draw(shape=(4000,), spread=spread)
    single = logits.detach().float().requires_grad_()
    double = single.detach().double().requires_grad_()
    losses = cross_entropy(single, y), cross_entropy(double, y)
    torch.testing.assert_close(losses[0].double(), losses[1], atol=1e-7, rtol=1e-6)
    found, wanted = torch.autograd.grad(sum(losses), (single, double))
    torch.testing.assert_close(found.double(), wanted, atol=1e-9, rtol=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_not_lost(bad):
    logits, y = draw()
    with torch.no_grad():
        logits[2, 3, 1] = bad
    assert not cross_entropy(logits, y).isfinite()


@pytest.mark.parametrize("shared", [True, False], ids=["one target", "own targets"])
def test_lanes_are_single_losses(shared):
    logits, y = draw(lanes=(3,))
    y = y[0] if shared else y
    mask = torch.arange(7)[:, None] < torch.tensor([7, 3, 2, 5, 1])
    dims = (0, None if shared else 0, None)
    losses = torch.vmap(cross_entropy, dims)(logits, y, mask)
    weights = torch.arange(1.0, 4.0).double()
    (gradient,) = torch.autograd.grad((losses * weights).sum(), logits)
    inner = torch.vmap(torch.func.grad(cross_entropy), dims)(logits.detach(), y, mask)
    for i in range(3):
        alone = cross_entropy(logits[i], y if shared else y[i], mask)
        torch.testing.assert_close(losses[i], alone, atol=1e-14, rtol=0)
        (expected,) = torch.autograd.grad(alone, logits)
        torch.testing.assert_close(gradient[i], weights[i] * expected[i], atol=1e-14, rtol=0)
        torch.testing.assert_close(inner[i], expected[i], atol=1e-14, rtol=0)


@pytest.mark.parametrize("spoilt", [math.nan, math.inf, 1e4])
def test_a_lane_keeps_its_bits_whatever_its_neighbour_does(spoilt):
    logits, y = draw(lanes=(2,), dtype=torch.float32)

    def loss_and_gradient(logits):
        return torch.vmap(torch.func.grad_and_value(cross_entropy))(logits, y)

    before = loss_and_gradient(logits.detach())
    with torch.no_grad():
        logits[0, 1, 2, 3] = spoilt
    after = loss_and_gradient(logits.detach())
    assert all(torch.equal(one[1], two[1]) for one, two in zip(before, after, strict=True))
    assert not torch.equal(before[1][0], after[1][0])


def test_a_second_derivative_is_refused_with_words():
    logits, y = draw()
    (gradient,) = torch.autograd.grad(cross_entropy(logits, y), logits, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        gradient.pow(2).sum().backward()


def test_without_gradients_the_value_is_the_same():
    logits, y = draw()
    with torch.no_grad():
        assert cross_entropy(logits, y) == cross_entropy(logits.requires_grad_(), y)


@pytest.mark.parametrize("label", [-1, 9])
def test_a_class_that_does_not_exist_is_refused(label):
    logits, y = draw()
    y[3, 2] = label
    with pytest.raises((IndexError, RuntimeError), match=r"out of bounds"):
        cross_entropy(logits, y)


@pytest.mark.parametrize("shape", [(7, 5), (5, 7, 9), (7, 5, 9, 1)])
def test_shapes_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match="expected logits of shape"):
        cross_entropy(torch.zeros(*shape), torch.zeros(7, 5, dtype=torch.int64))

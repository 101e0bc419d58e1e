"""The fast linear recurrence against the readable one, on each backend."""

import pytest
import torch
from helpers.agreement import (
    assert_close,
    assert_close_where_finite,
    choose_backend,
    more_threads,
    run_lanes,
)

from eigensweep.models.recurrence import scan as fast
from eigensweep.models.recurrence import scan_reference as readable
from eigensweep.models.recurrence.native.scan import SOURCE

SIZES = {  # τ, B, n
    "odd": (9, 5, 22),
    "one of each": (1, 1, 2),
    "one sequence": (7, 1, 34),
    "whole vectors": (6, 16, 32),
    "several blocks": (5, 31, 200),
}
KINDS = ["constant", "varying", "paired"]


@pytest.fixture(params=["torch", "native"])
def backend(request):
    return choose_backend(request, SOURCE)


def draw(kind, sizes, lanes=(), dtype=torch.float64):
    """Return a, b and h0, which take gradients."""
    torch.manual_seed(0)
    _, batch, n = sizes
    shape = (n,) if kind != "varying" else sizes
    a = torch.rand(*lanes, *shape, dtype=dtype) * 1.2 - 0.2
    b = torch.randn(*lanes, *sizes, dtype=dtype)
    h0 = torch.randn(*lanes, batch, n, dtype=dtype)
    return [part.requires_grad_() for part in (a, b, h0)]


def outcome(function, kind, leaves, **options):
    """Return the states and the gradients to a, b and h0."""
    H = function(*leaves, paired=kind == "paired", **options)
    return H, *torch.autograd.grad(score(H), leaves)


def score(H):
    weights = torch.linspace(-1, 1, H.numel(), dtype=H.dtype).view_as(H)
    return (H.sin() * weights).sum()


@pytest.mark.parametrize("kind", KINDS)
class TestEachBackend:
    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    def test_values_and_gradients_are_those_of_the_reference(self, backend, kind, sizes):
        leaves = draw(kind, sizes)
        expected = outcome(readable.scan, kind, leaves)
        assert_close(outcome(fast.scan, kind, leaves, backend=backend), expected)

    def test_in_float32_it_agrees_with_float64(self, backend, kind):
        leaves = draw(kind, (40, 3, 20), dtype=torch.float32)
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        single = outcome(fast.scan, kind, leaves, backend=backend)
        double = outcome(readable.scan, kind, doubles)
        assert_close([t.double() for t in single], double, 2e-5)

    def test_no_input_need_be_contiguous(self, backend, kind):
        leaves = draw(kind, SIZES["odd"])
        expected = outcome(fast.scan, kind, leaves, backend=backend)
        strided = [t.detach().unsqueeze(-1).expand(*t.shape, 2)[..., 1] for t in leaves]
        crossed = [t.mT.contiguous().mT if t.dim() > 1 else t for t in strided]
        assert not any(t.is_contiguous() for t in crossed[1:])
        leaves = [t.requires_grad_() for t in crossed]
        assert_close(outcome(fast.scan, kind, leaves, backend=backend), expected)

    def test_finite_differences_give_the_same_gradients(self, backend, kind):
        leaves = draw(kind, (4, 2, 4))

        def function(*leaves):
            return fast.scan(*leaves, paired=kind == "paired", backend=backend)

        assert torch.autograd.gradcheck(function, leaves)

    @pytest.mark.parametrize("bad", [torch.inf, torch.nan], ids=str)
    def test_a_bad_input_spoils_what_it_spoils_in_the_reference(self, backend, kind, bad):
        leaves = draw(kind, SIZES["odd"])
        with torch.no_grad():
            leaves[1][4, 1, 2:4] = bad  # a pair, where units go in pairs
        options = {"paired": kind == "paired"}
        actual = fast.scan(*leaves, **options, backend=backend)
        assert_close_where_finite([actual], [readable.scan(*leaves, **options)])

    def test_threads_change_nothing(self, backend, kind):
        leaves = draw(kind, (200, 31, 200))
        alone = outcome(fast.scan, kind, leaves, backend=backend)
        with more_threads():
            again = outcome(fast.scan, kind, leaves, backend=backend)
        assert_close(again, alone, 0 if backend == "native" else 1e-12)

    def test_a_second_derivative_is_refused_with_words(self, backend, kind):
        leaves = draw(kind, SIZES["odd"])
        H = fast.scan(*leaves, paired=kind == "paired", backend=backend)
        (db,) = torch.autograd.grad(H.sin().sum(), leaves[1], create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*reference"):
            torch.autograd.grad(db.sum(), leaves[0])

    @pytest.mark.parametrize("shared", [True, False], ids=["one input", "own inputs"])
    def test_each_lane_is_the_recurrence_alone(self, backend, kind, shared):
        a, b, h0 = draw(kind, SIZES["odd"], lanes=(2,))
        b = (b.detach()[0] if shared else b.detach()).requires_grad_()

        def lane(b, a, h0):
            return (fast.scan(a, b, h0, paired=kind == "paired", backend=backend),)

        stacked, expected = run_lanes(lane, b, (a, h0), shared)
        assert_close(stacked, expected)
        both = (torch.autograd.grad(score(H[0]), (a, b, h0)) for H in (stacked, expected))
        assert_close(*both)

    def test_a_wrong_shape_or_dtype_is_refused_in_words(self, backend, kind):
        leaves, options = draw(kind, SIZES["odd"]), {"paired": kind == "paired"}
        for position in (0, 2):
            for bad in (leaves[position][..., :-2], leaves[position].float()):
                spoilt = [*leaves[:position], bad, *leaves[position + 1 :]]
                with pytest.raises(ValueError, match=r"is torch.*; b asks for torch.float64 \("):
                    fast.scan(*spoilt, **options, backend=backend)


def test_pairs_are_complex_numbers():
    a, b, h0 = draw("paired", SIZES["odd"])
    lam, drive, start = (readable.as_complex(part) for part in (a, b, h0))
    expected = [start]
    for b_t in drive:
        expected.append(lam * expected[-1] + b_t)
    found = readable.as_complex(fast.scan(a, b, h0, paired=True))
    assert_close([torch.view_as_real(found)], [torch.view_as_real(torch.stack(expected[1:]))])


@pytest.mark.parametrize(
    ("shape", "paired"), [((3, 2), False), ((3, 2, 5), True), ((0, 2, 4), False)]
)
def test_what_is_driven_has_steps_sequences_and_units(shape, paired):
    b = torch.zeros(*shape)
    with pytest.raises(ValueError, match="and not empty; it is"):
        fast.scan(torch.zeros(shape[-1]), b, torch.zeros(2, shape[-1]), paired=paired)

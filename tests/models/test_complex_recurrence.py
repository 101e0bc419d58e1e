"""The fast complex and GORU recurrences against the readable ones, on each backend."""

from functools import partial

import pytest
import torch
from helpers import agreement
from helpers.agreement import (
    assert_close,
    assert_close_where_finite,
    choose_backend,
    more_threads,
    read_out,
    run_lanes,
    spoil,
)

from eigensweep.models.recurrence import complex as fast
from eigensweep.models.recurrence.complex import interleave, paired_matrix
from eigensweep.models.recurrence.complex_reference import FORMS, complex_states
from eigensweep.models.recurrence.goru import goru
from eigensweep.models.recurrence.goru_reference import goru_states
from eigensweep.models.recurrence.native import gated
from eigensweep.models.recurrence.native import paired as pairs

SIZES = {
    **agreement.SIZES,  # τ, B, n, m, p
    "wide": (3, 17, 135, 5, 2),
}
CELLS = [*FORMS, "goru"]


@pytest.fixture(params=["torch", "native"])
def backend(request):
    return choose_backend(request, gated.SOURCE, pairs.SOURCE)


def draw(cell, sizes, inputs="symbols", dtype=torch.float64, lanes=()):
    """Return x and the leaves U, W, b, V, c, h0; of GORU U, R, b, threshold, V, c, h0."""
    steps, batch, n, m, p = sizes
    torch.manual_seed(sum(sizes))
    if inputs == "symbols":
        x = torch.randint(0, m, (*lanes, steps, batch))
    else:
        x = torch.randn(*lanes, steps, batch, m, dtype=dtype)
    shapes = [(2 * n, m), (n, n), (n,), (p, 2 * n), (p,), (batch, n)]
    if cell == "goru":
        shapes = [(3 * n, m), (3 * n, n), (2 * n,), (n,), (p, n), (p,), (batch, n)]
    leaves = [torch.randn(*lanes, *shape, dtype=dtype) for shape in shapes]
    if cell != "goru":
        for k in (1, 5):
            leaves[k] = torch.complex(leaves[k], torch.randn(*lanes, *shapes[k], dtype=dtype))
    leaves[1] = leaves[1] / (1.4 * n**0.5)
    leaves[-4 if cell != "goru" else 3].mul_(0.3)
    return x, [leaf.requires_grad_() for leaf in leaves]


def run(cell, x, *leaves, **options):
    """Return (logits, last h) of the fast recurrence."""
    *parameters, h0 = leaves
    if cell == "goru":
        return goru(x, *parameters, h0=h0, **options)
    return fast.recur(x, *parameters, h0=h0, activation=cell, **options)


def run_readable(cell, x, *leaves, readout="all"):
    *parameters, V, c, h0 = leaves
    states = goru_states if cell == "goru" else partial(complex_states, activation=cell)
    return read_out(states(x, *parameters, h0=h0), V, c, readout)


def outcome(function, cell, x, leaves, **options):
    """Return logits, last h and the gradients of everything that takes one."""
    logits, h = function(cell, x, *leaves, **options)
    inputs = [t for t in (x, *leaves) if t.requires_grad]
    return logits, h, *torch.autograd.grad(score(logits, h), inputs)


def score(logits, h):
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)
    h = torch.view_as_real(h) if h.is_complex() else h
    return (logits.sin() * weights).sum() + (h + 0.3).cos().sum()


@pytest.mark.parametrize("cell", CELLS)
class TestEachBackend:
    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("inputs", ["symbols", "values"])
    @pytest.mark.parametrize("readout", ["all", "last"])
    @pytest.mark.quick_cases(24)
    def test_values_and_gradients_are_those_of_the_reference(
        self, backend, cell, readout, inputs, sizes
    ):
        x, leaves = draw(cell, sizes, inputs)
        x.requires_grad_(inputs == "values")
        expected = outcome(run_readable, cell, x, leaves, readout=readout)
        for chunk in (None, 1, 4):
            how = {"readout": readout, "chunk": chunk, "backend": backend}
            assert_close(outcome(run, cell, x, leaves, **how), expected)

    def test_one_step_in_float32_agrees_from_any_state(self, backend, cell):
        x, leaves = draw(cell, (1, 13, 45, 6, 4), "values", torch.float32)
        single = run(cell, x, *leaves, backend=backend)
        doubles = [
            leaf.detach().to(torch.promote_types(leaf.dtype, x.double().dtype)) for leaf in leaves
        ]
        double = run_readable(cell, x.double(), *doubles)
        assert_close([t.to(d.dtype) for t, d in zip(single, double, strict=True)], double, 5e-6)

    def test_no_input_need_be_contiguous(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"], "values")
        expected = outcome(run, cell, x, leaves, backend=backend)
        strided = [t.detach().unsqueeze(-1).expand(*t.shape, 2)[..., 1] for t in (x, *leaves)]
        crossed = [t.mT.contiguous().mT if t.dim() > 1 else t for t in strided]
        leaves = [t.requires_grad_() for t in crossed[1:]]
        assert not any(t.is_contiguous() for t in (crossed[0], *leaves[:2]))
        assert_close(outcome(run, cell, crossed[0], leaves, backend=backend), expected)

    @pytest.mark.quick_cases(2)
    def test_finite_differences_give_the_same_gradients(self, backend, cell):
        x, leaves = draw(cell, (4, 2, 3, 2, 2), "values")

        def function(x, *leaves):
            return run(cell, x, *leaves, backend=backend, chunk=3)

        assert torch.autograd.gradcheck(function, (x.requires_grad_(), *leaves))

    def test_without_gradients_the_result_is_the_same_bit_for_bit(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        kept = run(cell, x, *leaves, backend=backend, chunk=2)
        with torch.no_grad():
            assert_close(run(cell, x, *leaves, backend=backend, chunk=2), kept, 0)

    @pytest.mark.parametrize("whole_row", [False, True], ids=["one entry", "a row"])
    @pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan], ids=str)
    def test_a_bad_input_spoils_what_it_spoils_in_the_reference(
        self, backend, cell, bad, whole_row
    ):
        x, leaves = draw(cell, SIZES["odd"], "values")
        x = spoil(x, bad, whole_row)
        actual = outcome(run, cell, x, leaves, backend=backend)
        assert_close_where_finite(actual, outcome(run_readable, cell, x, leaves))

    def test_threads_change_nothing(self, backend, cell):
        x, leaves = draw(cell, (20, 64, 70, 4, 3))
        alone = outcome(run, cell, x, leaves, backend=backend)
        with more_threads():
            assert_close(outcome(run, cell, x, leaves, backend=backend), alone)

    def test_a_second_derivative_is_refused_with_words(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        logits, _ = run(cell, x, *leaves, backend=backend)
        (dV,) = torch.autograd.grad(logits.sin().sum(), leaves[-3], create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*reference"):
            torch.autograd.grad(dV.sum(), leaves[0])

    @pytest.mark.parametrize("shared", [True, False], ids=["one input", "own inputs"])
    @pytest.mark.parametrize("inputs", ["symbols", "values"])
    def test_each_lane_is_the_network_alone(self, backend, cell, inputs, shared):
        x, leaves = draw(cell, SIZES["odd"], inputs, lanes=(2,))
        x = (x[0] if shared else x).requires_grad_(inputs == "values")

        def lane(x, *leaves):
            return run(cell, x, *leaves, backend=backend, chunk=4)

        stacked, expected = run_lanes(lane, x, leaves, shared)
        assert_close(stacked, expected)
        wanted = [t for t in (x, *leaves) if t.requires_grad]
        assert_close(*(torch.autograd.grad(score(*both), wanted) for both in (stacked, expected)))

    def test_a_wrong_shape_or_dtype_is_refused_in_words(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        for position in range(len(leaves)):
            single = torch.complex64 if leaves[position].is_complex() else torch.float32
            for bad in (leaves[position][:-1], leaves[position].to(single)):
                spoilt = [*leaves[:position], bad, *leaves[position + 1 :]]
                with pytest.raises(ValueError, match=r"is torch.*of \d+ hidden units"):
                    run(cell, x, *spoilt, backend=backend)


@pytest.mark.parametrize("activation", FORMS)
def test_at_zero_modrelu_of_complex_numbers_is_zero_and_smooth(backend, activation):
    """Slope at z = 0: (0.01 + b) / 0.01 in EUNN, (√ε + b) / (√ε + ε) with ε = 1e-5 in uRNN."""
    zero = torch.zeros(1, 1, dtype=torch.float64)
    U = torch.eye(2, dtype=torch.float64)
    W = h0 = torch.complex(zero, zero)
    b = torch.tensor([0.05], dtype=torch.float64)
    x = torch.zeros(1, 1, 2, dtype=torch.float64, requires_grad=True)
    how = {"activation": activation, "h0": h0, "backend": backend}
    logits, _ = fast.recur(x, U, W, b, U, torch.zeros(2, dtype=torch.float64), **how)
    (slope,) = torch.autograd.grad(logits[..., 0].sum(), x)
    root = 1e-5**0.5
    expected = 0.06 / 0.01 if activation == "shifted_modrelu" else (root + 0.05) / (root + 1e-5)
    assert logits.tolist() == [[[0, 0]]]
    assert slope[0, 0].tolist() == pytest.approx([expected, 0])


def test_the_real_matrix_of_pairs_acts_as_the_complex_one():
    W, h = (torch.randn(*shape, dtype=torch.complex128) for shape in ((7, 7), (7,)))
    composite = torch.cat((h.real, h.imag))
    found = paired_matrix(W) @ interleave(composite)
    torch.testing.assert_close(found, interleave(torch.cat(((W @ h).real, (W @ h).imag))))

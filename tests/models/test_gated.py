"""The fast gated recurrences and ODEs against the readable ones and PyTorch's own, by backend."""

from functools import cache

import pytest
import torch
from helpers import agreement
from helpers.agreement import (
    assert_close,
    assert_close_where_finite,
    choose_backend,
    more_threads,
    run_lanes,
    spoil,
)
from torch.nn.functional import linear

from eigensweep.models.recurrence.gated import gru, lstm
from eigensweep.models.recurrence.gated_reference import Peephole, gru_states, lstm_states
from eigensweep.models.recurrence.native.gated import SOURCE
from eigensweep.models.recurrence.ode import cornn, lem
from eigensweep.models.recurrence.ode_reference import cornn_states, lem_states

CELLS = {
    "lstm": ("lstm", "none", "state"),
    "lstm reads the cell": ("lstm", "none", "cell"),
    "lstm diagonal": ("lstm", "diagonal", "state"),
    "lstm diagonal reads the cell": ("lstm", "diagonal", "cell"),
    "lstm full": ("lstm", "output_full", "state"),
    "lstm full reads the cell": ("lstm", "output_full", "cell"),
    "gru": ("gru", "pytorch", None),
    "gru cho": ("gru", "cho", None),
    "cornn": ("cornn", None, None),
    "lem": ("lem", None, None),
}
DISTINCT = [cell for name, cell in CELLS.items() if "reads" not in name]
PARTS = {"lstm": (4, 4), "gru": (3, 3), "goru": (3, 3), "cornn": (1, 2), "lem": (4, 4)}
"""Rows of U and of R, as multiples of n."""
ODES = {
    "cornn": (cornn, cornn_states, {"dt": 0.3, "gamma": 1.2, "epsilon": 0.7}),
    "lem": (lem, lem_states, {"dt": 0.6}),
}


def name_of(cell):
    return " ".join(filter(None, cell[:2]))


SIZES = {
    **agreement.SIZES,  # τ, B, n, m, p
    "one step": (1, 6, 8, 3, 2),
    "one unit": (5, 3, 1, 2, 2),
    "crowded rows": (3, 17, 256, 5, 2),
}


@pytest.fixture(params=["torch", "native"])
def backend(request):
    return choose_backend(request, SOURCE)


def draw(cell, sizes, inputs="symbols", dtype=torch.float64, lanes=()):
    """Return x and the leaves U, R, b, V, c, h0, a second first state, and an LSTM's peepholes."""
    steps, batch, n, m, p = sizes
    kind, option, _ = cell
    torch.manual_seed(sum(sizes))
    if inputs == "symbols":
        x = torch.randint(0, m, (*lanes, steps, batch))
    else:
        x = torch.randn(*lanes, steps, batch, m, dtype=dtype)
    rows, products = PARTS[kind]
    shapes = [(rows * n, m), (products * n, n), (rows * n,), (p, n), (p,), (batch, n)]
    if kind not in ("gru", "goru"):
        shapes.append((batch, n))
    if kind == "lstm":
        shapes += {"none": [], "diagonal": [(2 * n,), (n,)], "output_full": [(n, n)]}[option]
    leaves = [torch.randn(*lanes, *shape, dtype=dtype) for shape in shapes]
    leaves[1] /= n**0.5
    leaves[3] /= n**0.5
    return x, [leaf.requires_grad_() for leaf in leaves]


def peephole_of(seen):
    return Peephole(*seen) if len(seen) == 2 else Peephole(None, *seen)


def fast(cell, x, leaves, **options):
    """Return logits and the last states."""
    kind, option, seen = cell
    *parameters, h0 = leaves[:6]
    if kind == "gru":
        return gru(x, *parameters, h0=h0, variant=option, **options)
    if kind in ODES:
        run, _, numbers = ODES[kind]
        logits, states = run(x, *parameters, y0=h0, z0=leaves[6], **numbers, **options)
        return (logits, *states)
    c0, *weights = leaves[6:]
    logits, states = lstm(
        x,
        *parameters,
        h0=h0,
        c0=c0,
        peephole=peephole_of(weights),
        readout_from=seen,
        **options,
    )
    return (logits, *states)


def readable(cell, x, leaves, readout="all"):
    kind, option, seen = cell
    U, R, b, V, c, h0 = leaves[:6]
    if kind == "gru":
        histories = (gru_states(x, U, R, b, h0=h0, variant=option),)
    elif kind in ODES:
        _, run, numbers = ODES[kind]
        histories = run(x, U, R, b, y0=h0, z0=leaves[6], **numbers)
    else:
        c0, *weights = leaves[6:]
        histories = lstm_states(x, U, R, b, h0=h0, c0=c0, peephole=peephole_of(weights))
    read = histories[seen == "cell"]
    logits = linear(read if readout == "all" else read[-1], V, c)
    return (logits, *(history[-1] for history in histories))


def gradients(outputs, inputs):
    """Return the gradients of a scalar in which every entry of the outputs counts differently."""
    loss = sum(
        (y.sin() * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
        for y in outputs
    )
    return torch.autograd.grad(loss, inputs)


def outcome(function, cell, x, leaves, **options):
    """Return logits, last states and the gradients of everything that takes one."""
    outputs = function(cell, x, leaves, **options)
    inputs = [t for t in (x, *leaves) if t.requires_grad]
    return [*outputs, *gradients(outputs, inputs)]


@pytest.fixture(scope="module")
def expect():
    """Return a function that gives the outcome of the readable ones, for all backends."""

    @cache
    def run_readable(cell, sizes, inputs, readout):
        x, leaves = draw(cell, sizes, inputs)
        x.requires_grad_(inputs == "values")
        return [each.detach() for each in outcome(readable, cell, x, leaves, readout=readout)]

    return run_readable


@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
class TestEachCell:
    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("inputs", ["symbols", "values"])
    @pytest.mark.quick_cases(32)
    def test_values_and_gradients_are_those_of_the_reference(
        self, backend, expect, cell, inputs, sizes
    ):
        x, leaves = draw(cell, sizes, inputs)
        x.requires_grad_(inputs == "values")
        for readout in ("all", "last"):
            expected = expect(cell, sizes, inputs, readout)
            for chunk in {"all": (None, 4), "last": (4,)}[readout]:
                how = {"readout": readout, "chunk": chunk, "backend": backend}
                assert_close(outcome(fast, cell, x, leaves, **how), expected)

    def test_one_step_in_float32_agrees_from_any_state(self, backend, cell):
        x, leaves = draw(cell, (1, 13, 45, 6, 4), "values", torch.float32)
        single = fast(cell, x, leaves, backend=backend)
        double = readable(cell, x.double(), [leaf.double() for leaf in leaves])
        assert_close([t.double() for t in single], double, 5e-6)

    def test_gradients_in_float32_agree_over_a_few_steps(self, backend, cell):
        x, leaves = draw(cell, (6, 13, 45, 6, 4), "values", torch.float32)
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        single = outcome(fast, cell, x, leaves, backend=backend)
        double = outcome(readable, cell, x.double(), doubles)
        for actual, exact in zip(single, double, strict=True):
            assert (actual.double() - exact).abs().max() < 1e-5 * exact.abs().max()

    @pytest.mark.parametrize("whole_row", [False, True], ids=["one entry", "a row"])
    @pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan], ids=str)
    @pytest.mark.quick_cases(20)
    def test_a_bad_input_spoils_what_it_spoils_in_the_reference(
        self, backend, cell, bad, whole_row
    ):
        x, leaves = draw(cell, SIZES["odd"], "values")
        x = spoil(x, bad, whole_row)
        actual = outcome(fast, cell, x, leaves, backend=backend)
        assert_close_where_finite(actual, outcome(readable, cell, x, leaves))

    def test_large_arguments_of_the_gates_saturate_them(self, backend, cell):
        for dtype in (torch.float32, torch.float64):
            x, leaves = draw(cell, (4, 3, 9, 2, 2), "values", dtype)
            leaves = [leaf.detach() for leaf in leaves]
            leaves[0] *= 1e4
            assert_close(fast(cell, x, leaves, backend=backend), readable(cell, x, leaves), 1e-5)

    def test_no_input_need_be_contiguous(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"], "values")
        expected = outcome(fast, cell, x, leaves, backend=backend)
        strided = [t.detach().unsqueeze(-1).expand(*t.shape, 2)[..., 1] for t in (x, *leaves)]
        x, *leaves = (t.mT.contiguous().mT if t.dim() > 1 else t for t in strided)
        assert not any(t.is_contiguous() for t in (x, *leaves[:2]))
        leaves = [t.requires_grad_() for t in leaves]
        assert_close(outcome(fast, cell, x, leaves, backend=backend), expected)

    @pytest.mark.quick_cases(3)
    def test_finite_differences_give_the_same_gradients(self, backend, cell):
        x, leaves = draw(cell, (3, 2, 2, 1, 1), "values")

        def function(x, *leaves):
            return fast(cell, x, leaves, backend=backend, chunk=2)

        assert torch.autograd.gradcheck(function, (x.requires_grad_(), *leaves))

    def test_without_gradients_the_result_is_the_same(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        kept = fast(cell, x, leaves, backend=backend, chunk=2)
        with torch.no_grad():
            assert_close(fast(cell, x, leaves, backend=backend, chunk=2), kept, 1e-14)

    def test_two_halves_of_a_sequence_give_what_the_whole_gives(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        first = fast(cell, x[:4], leaves, backend=backend)
        later = [*leaves[:5], *first[1:], *leaves[5 + len(first[1:]) :]]
        second = fast(cell, x[4:], later, backend=backend)
        whole = fast(cell, x, leaves, backend=backend)
        assert_close([torch.cat([first[0], second[0]]), *second[1:]], whole, 1e-14)
        joined = [torch.cat([first[0], second[0]]), *second[1:]]
        assert_close(gradients(joined, leaves), gradients(whole, leaves))

    def test_threads_change_nothing(self, backend, cell):
        x, leaves = draw(cell, (10, 64, 70, 4, 3))
        alone = outcome(fast, cell, x, leaves, backend=backend)
        with more_threads():
            assert_close(outcome(fast, cell, x, leaves, backend=backend), alone)

    def test_a_second_derivative_is_refused_with_words(self, backend, cell):
        x, leaves = draw(cell, SIZES["odd"])
        logits = fast(cell, x, leaves, backend=backend)[0]
        (dR,) = torch.autograd.grad(logits.sum(), leaves[1], create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*gated_reference"):
            torch.autograd.grad(dR.sum(), leaves[1])


@pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
@pytest.mark.parametrize("inputs", ["symbols", "values"])
@pytest.mark.parametrize("shared", [True, False], ids=["one input", "own inputs"])
class TestLanes:
    """Two networks as one program, as `torch.vmap` makes it of the code for one."""

    @pytest.mark.quick_cases(10)
    def test_each_lane_is_the_network_alone(self, backend, cell, inputs, shared):
        x, leaves = draw(cell, SIZES["odd"], inputs, lanes=(2,))
        x = (x[0] if shared else x).requires_grad_(inputs == "values")

        def lane(x, *leaves):
            return fast(cell, x, leaves, backend=backend, chunk=4)

        stacked, expected = run_lanes(lane, x, leaves, shared)
        assert_close(stacked, expected)
        wanted = [t for t in (x, *leaves) if t.requires_grad]
        assert_close(gradients(stacked, wanted), gradients(expected, wanted))

    @pytest.mark.quick_cases(10)
    def test_gradients_inside_a_map_are_those_of_each_lane(self, backend, cell, inputs, shared):
        x, leaves = draw(cell, SIZES["odd"], inputs, lanes=(2,))
        x, leaves = (x[0] if shared else x), tuple(leaf.detach() for leaf in leaves)

        def loss(leaves, x):
            return sum(y.sin().sum() for y in fast(cell, x, leaves, backend=backend))

        dims = (0, None if shared else 0)
        stacked = torch.vmap(torch.func.grad(loss), in_dims=dims)(leaves, x)
        for i in range(2):
            own = tuple(leaf[i] for leaf in leaves)
            assert_close([t[i] for t in stacked], torch.func.grad(loss)(own, x if shared else x[i]))


class TestAgainstPyTorch:
    """With equal weights; PyTorch orders an LSTM's gates i, f, g, o and has a second bias."""

    def outputs_of(self, module, x, rows, leaves):
        U, R, b, V, c, *start = leaves
        names = [f"{kind}_l0" for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        values = dict(zip(names, (U[rows], R[rows], b[rows], torch.zeros_like(b)), strict=True))
        start = [state.unsqueeze(0) for state in start]
        start = start[0] if len(start) == 1 else tuple(start)
        H, last = torch.func.functional_call(module, values, (x, start))
        last = (last,) if isinstance(last, torch.Tensor) else last
        return linear(H, V, c), *(state.squeeze(0) for state in last)

    @pytest.mark.parametrize("kind", ["lstm", "gru"])
    def test_values_and_gradients_are_those_of_its_module(self, backend, kind):
        cell = CELLS[kind]
        x, leaves = draw(cell, SIZES["odd"], "values")
        n, m = 19, 4
        rows = torch.arange(len(leaves[2]))
        if kind == "lstm":
            i, f, o, g = rows.chunk(4)
            rows = torch.cat([i, f, g, o])
        module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](m, n).double()
        expected = self.outputs_of(module, x, rows, leaves)
        actual = fast(cell, x, leaves, backend=backend)
        assert_close(actual, expected)
        assert_close(gradients(actual, leaves), gradients(expected, leaves))


class TestBadInput:
    def test_a_symbol_beyond_the_columns_of_u_is_refused(self, backend):
        for cell in DISTINCT:
            x, leaves = draw(cell, SIZES["odd"])
            x[3, 2] = 4
            with pytest.raises(IndexError, match="symbols are 0 to 3; x has 0 to 4"):
                fast(cell, x, leaves, backend=backend)

    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    def test_a_wrong_shape_or_dtype_is_refused_in_words(self, cell):
        x, leaves = draw(cell, SIZES["odd"])
        for position, leaf in enumerate(leaves):
            for bad in (leaf[:-1], leaf.float()):
                spoilt = [*leaves[:position], bad, *leaves[position + 1 :]]
                with pytest.raises(ValueError, match=r"is torch.*R of \d+ hidden units"):
                    fast(cell, x, spoilt)

    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    def test_tensors_on_two_devices_never_reach_compiled_steps(self, cell):
        x, leaves = draw(cell, SIZES["odd"])
        with pytest.raises(ValueError, match=r"x is on meta and R on cpu.*the same device"):
            fast(cell, x.to("meta"), leaves)

    def test_half_a_peephole_is_refused(self):
        x, leaves = draw(CELLS["lstm diagonal"], SIZES["odd"])
        *parameters, h0, c0, input_forget, _ = leaves
        with pytest.raises(ValueError, match="given are peephole_input_forget"):
            lstm(x, *parameters, h0=h0, c0=c0, peephole=Peephole(input_forget))

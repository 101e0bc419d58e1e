"""The fast recurrence against the readable one, on each backend."""

import sys
import threading

import pytest
import torch
from helpers import agreement
from helpers.agreement import (
    assert_close,
    assert_close_where_finite,
    choose_backend,
    more_threads,
    recur_readably,
    run_lanes,
    spoil,
)

from eigensweep.models.recurrence.history import empty_history
from eigensweep.models.recurrence.native.ungated import SOURCE, NativeSteps
from eigensweep.models.recurrence.steps import ACTIVATIONS, Parameters, TorchSteps
from eigensweep.models.recurrence.ungated import recur

SIZES = {
    **agreement.SIZES,  # τ, B, n, m, p
    "wide": (3, 17, 270, 5, 2),
}


@pytest.fixture(params=["torch", "native"])
def backend(request):
    return choose_backend(request, SOURCE)


def draw(sizes, inputs="symbols", dtype=torch.float64, lanes=()):
    """Return x and the leaves U, W, b, V, c, h0."""
    steps, batch, n, m, p = sizes
    torch.manual_seed(sum(sizes))
    if inputs == "symbols":
        x = torch.randint(0, m, (*lanes, steps, batch))
    else:
        x = torch.randn(*lanes, steps, batch, n if inputs == "states" else m, dtype=dtype)
    shapes = [(n, m), (n, n), (n,), (p, n), (p,), (batch, n)]
    leaves = [torch.randn(*lanes, *shape, dtype=dtype) for shape in shapes]
    leaves[1] /= n**0.5
    leaves[3] /= n**0.5
    leaves[2] *= 0.3
    return x, [leaf.requires_grad_() for leaf in leaves]


def outcome(function, x, leaves, **options):
    """Return logits, last h and the gradients of everything that takes one."""
    *parameters, h0 = leaves
    if len(parameters) == 4:
        parameters.insert(0, None)
    logits, h = function(x, *parameters, h0=h0, **options)
    loss = (logits.sin() * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()
    inputs = [t for t in (x, *leaves) if t.requires_grad]
    return logits, h, *torch.autograd.grad(loss + h.cos().sum(), inputs)


def clipped_outcome(function, x, leaves, **options):
    """Return logits, last h and all gradients but b's, which holds the limit."""
    inputs = [t for t in (x, *leaves) if t.requires_grad]
    *parameters, h0 = leaves
    parameters = [None, *parameters] if len(parameters) == 4 else parameters
    logits, h = function(x, *parameters, h0=h0, activation="clipped", **options)
    loss = (logits.sin() * torch.linspace(-1, 1, logits.numel()).view_as(logits)).sum()
    return logits, h, *torch.autograd.grad(loss + h.cos().sum(), inputs)


class TestEachBackend:
    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("inputs", ["symbols", "values"])
    @pytest.mark.parametrize("readout", ["all", "last"])
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.quick_cases(40)
    def test_values_and_gradients_are_those_of_the_reference(
        self, backend, activation, readout, inputs, sizes
    ):
        x, leaves = draw(sizes, inputs)
        x.requires_grad_(inputs == "values")
        how = {"activation": activation, "readout": readout}
        expected = outcome(recur_readably, x, leaves, **how)
        for chunk in (None, 1, 4):
            assert_close(outcome(recur, x, leaves, chunk=chunk, backend=backend, **how), expected)

    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("readout", ["all", "last"])
    @pytest.mark.parametrize("activation", ["identity", "modrelu"])
    @pytest.mark.quick_cases(8)
    def test_an_input_may_enter_the_state_as_it_is(self, backend, activation, readout, sizes):
        x, leaves = draw(sizes, "states")
        x.requires_grad_()
        how = {"activation": activation, "readout": readout}
        expected = outcome(recur_readably, x, leaves[1:], **how)
        for chunk in (None, 1, 4):
            assert_close(
                outcome(recur, x, leaves[1:], chunk=chunk, backend=backend, **how), expected
            )

    @pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
    @pytest.mark.parametrize("inputs", ["symbols", "values", "states"])
    @pytest.mark.parametrize("readout", ["all", "last"])
    @pytest.mark.quick_cases(12)
    def test_states_too_long_are_clipped_as_in_the_reference(self, backend, readout, inputs, sizes):
        x, leaves = draw(sizes, inputs)
        x.requires_grad_(inputs != "symbols")
        b = torch.full_like(leaves[2], 2.5 * sizes[2] ** 0.5)
        leaves = [b if leaf is leaves[2] else leaf for leaf in leaves]
        leaves = leaves[1:] if inputs == "states" else leaves
        outcomes = [
            clipped_outcome(function, x, leaves, readout=readout, **options)
            for function, options in (
                (recur_readably, {}),
                (recur, {"backend": backend}),
                (recur, {"backend": backend, "chunk": 1}),
                (recur, {"backend": backend, "chunk": 4}),
            )
        ]
        for found in outcomes[1:]:
            assert_close(found, outcomes[0])

    def test_some_states_are_clipped_and_some_are_not(self, backend):
        x, leaves = draw(SIZES["odd"], "values")
        b = torch.full_like(leaves[2], 2.5 * SIZES["odd"][2] ** 0.5)
        n = len(b)
        U, W, _, _, _, h0 = leaves
        eye = (torch.eye(n, dtype=b.dtype), torch.zeros_like(b))
        H, _ = recur(x, U, W, b, *eye, activation="clipped", h0=h0, backend=backend)
        at_limit = H.norm(dim=-1) > b[0] * (1 - 1e-9)
        assert 0.1 < at_limit.double().mean() < 0.9
        assert (H.norm(dim=-1) <= b[0] * (1 + 1e-9)).all()

    def test_without_u_an_input_of_another_size_is_refused(self, backend):
        x, leaves = draw(SIZES["odd"], "values")
        for bad in (x, x[..., 0].long()):
            with pytest.raises(ValueError, match=r"without U.*float \(τ, B, 19\); it is"):
                recur(bad, None, *leaves[1:5], activation="identity", backend=backend)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_one_step_in_float32_agrees_from_any_state(self, backend, activation):
        x, leaves = draw((1, 13, 45, 6, 4), "values", torch.float32)
        single = outcome(recur, x, leaves, activation=activation, backend=backend)
        doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
        double = outcome(recur_readably, x.double(), doubles, activation=activation)
        assert_close([t.double() for t in single[:2]], list(double[:2]), 5e-6)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_the_way_back_in_float32_agrees_from_given_states(self, backend, activation):
        x, leaves = draw((6, 13, 45, 6, 4), "values", torch.float32, lanes=(2,))
        U, W, b, V, c, _ = (leaf.detach() for leaf in leaves)
        states = torch.tanh(torch.randn(2, 7, 13, 45)).relu()
        d_logits, later = torch.randn(2, 6, 13, 4), torch.randn(2, 13, 45)

        def gradients(kind, dtype):
            parameters = Parameters(*(t.to(dtype) for t in (U, W, b, V, c)))
            steps = kind(parameters, activation)
            H, G = torch.zeros(2, 2, 7, 13, steps.row, dtype=dtype)
            H[..., :45], G[:, -1, :, :45] = states, later
            steps.backward(G, H, x.to(dtype), d_logits.to(dtype))
            return [t.double() for t in (G[..., :45], *steps.gradients())]

        kind = NativeSteps if backend == "native" else TorchSteps
        single = gradients(kind, torch.float32)
        for actual, exact in zip(single, gradients(TorchSteps, torch.float64), strict=True):
            assert (actual - exact).abs().max() < 1e-6 * exact.abs().max()

    def test_no_input_need_be_contiguous(self, backend):
        sizes = SIZES["odd"]
        x, leaves = draw(sizes, "values")
        expected = outcome(recur, x, leaves, activation="tanh", backend=backend)
        strided = [t.detach().unsqueeze(-1).expand(*t.shape, 2)[..., 1] for t in (x, *leaves)]
        crossed = [t.mT.contiguous().mT if t.dim() > 1 else t for t in strided]
        leaves = [t.requires_grad_() for t in crossed[1:]]
        assert not any(t.is_contiguous() for t in (crossed[0], *leaves[:2]))
        assert_close(
            outcome(recur, crossed[0], leaves, activation="tanh", backend=backend), expected
        )

    @pytest.mark.parametrize("activation", ["modrelu", "tanh"])
    def test_finite_differences_give_the_same_gradients(self, backend, activation):
        x, leaves = draw((4, 2, 3, 2, 2), "values")

        def function(x, *leaves):
            *parameters, h0 = leaves
            return recur(x, *parameters, h0=h0, activation=activation, backend=backend, chunk=3)

        assert torch.autograd.gradcheck(function, (x.requires_grad_(), *leaves))

    def test_without_gradients_the_result_is_the_same_bit_for_bit(self, backend):
        x, leaves = draw(SIZES["odd"])
        how = {"activation": "modrelu", "backend": backend, "chunk": 2}
        kept = recur(x, *leaves[:5], h0=leaves[5], **how)
        with torch.no_grad():
            assert_close(recur(x, *leaves[:5], h0=leaves[5], **how), kept, 0)

    @pytest.mark.parametrize("activation", ACTIVATIONS)
    @pytest.mark.parametrize("whole_row", [False, True], ids=["one entry", "a row"])
    @pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan], ids=str)
    @pytest.mark.quick_cases(12)
    def test_a_bad_input_spoils_what_it_spoils_in_the_reference(
        self, backend, activation, bad, whole_row
    ):
        x, leaves = draw(SIZES["odd"], "values")
        x = spoil(x, bad, whole_row)
        actual = outcome(recur, x, leaves, activation=activation, backend=backend)
        expected = outcome(recur_readably, x, leaves, activation=activation)
        assert_close_where_finite(actual, expected)

    def test_threads_change_nothing(self, backend):
        x, leaves = draw((20, 64, 70, 4, 3))
        alone = outcome(recur, x, leaves, activation="modrelu", backend=backend)
        with more_threads():
            assert_close(outcome(recur, x, leaves, activation="modrelu", backend=backend), alone)

    def test_a_second_derivative_is_refused_with_words(self, backend):
        x, leaves = draw(SIZES["odd"])
        logits, _ = recur(x, *leaves[:5], activation="tanh", backend=backend)
        (dW,) = torch.autograd.grad(logits.sum(), leaves[1], create_graph=True)
        with pytest.raises(RuntimeError, match=r"first derivatives only.*reference"):
            torch.autograd.grad(dW.sum(), leaves[1])


@pytest.mark.parametrize("inputs", ["symbols", "values"])
@pytest.mark.parametrize("shared", [True, False], ids=["one input", "own inputs"])
class TestLanes:
    """Two networks as one program, as `torch.vmap` makes it of the code for one."""

    def test_each_lane_is_the_network_alone(self, backend, inputs, shared):
        x, leaves = draw(SIZES["odd"], inputs, lanes=(2,))
        x = (x[0] if shared else x).requires_grad_(inputs == "values")

        def lane(x, *leaves):
            *parameters, h0 = leaves
            return recur(x, *parameters, h0=h0, activation="modrelu", backend=backend, chunk=4)

        stacked, expected = run_lanes(lane, x, leaves, shared)
        assert_close(stacked, expected)
        wanted = [t for t in (x, *leaves) if t.requires_grad]
        gradients = [
            torch.autograd.grad(logits.sin().sum() + h.cos().sum(), wanted)
            for logits, h in (stacked, expected)
        ]
        assert_close(*gradients)

    def test_gradients_inside_a_map_are_those_of_each_lane(self, backend, inputs, shared):
        x, leaves = draw(SIZES["odd"], inputs, lanes=(2,))
        x, leaves = (x[0] if shared else x), [leaf.detach() for leaf in leaves]

        def loss(leaves, x):
            *parameters, h0 = leaves
            logits, h = recur(x, *parameters, h0=h0, activation="tanh", backend=backend)
            return logits.sin().sum() + h.sum()

        dims = (0, None if shared else 0)
        stacked = torch.vmap(torch.func.grad(loss), in_dims=dims)(tuple(leaves), x)
        for i in range(2):
            own = tuple(leaf[i] for leaf in leaves)
            assert_close(
                [t[i] for t in stacked], list(torch.func.grad(loss)(own, x if shared else x[i]))
            )


class TestBadInput:
    def test_a_symbol_beyond_the_columns_of_u_is_refused(self, backend):
        x, leaves = draw(SIZES["odd"])
        x[3, 2] = 4
        with pytest.raises(IndexError):
            recur(x, *leaves[:5], activation="tanh", backend=backend)

    @pytest.mark.parametrize("position", range(6))
    def test_a_wrong_shape_or_dtype_is_refused_in_words(self, position):
        x, leaves = draw(SIZES["odd"])
        for bad in (leaves[position][:-1], leaves[position].float()):
            spoilt = [*leaves[:position], bad, *leaves[position + 1 :]]
            with pytest.raises(ValueError, match=r"is torch.*W of \d+ hidden units"):
                recur(x, *spoilt[:5], h0=spoilt[5], activation="tanh")

    @pytest.mark.parametrize("position", range(-1, 6))
    def test_tensors_on_two_devices_never_reach_compiled_steps(self, position):
        x, leaves = draw(SIZES["odd"])
        leaves = list(leaves)
        if position < 0:
            x = x.to("meta")
        else:
            leaves[position] = leaves[position].to("meta")
        with pytest.raises(ValueError, match=r"must be on the same device"):
            recur(x, *leaves[:5], h0=leaves[5], activation="tanh")


def test_threads_take_spare_blocks_at_once():
    like, errors = torch.zeros(()), []

    def work(number):
        for k in range(300):
            try:
                empty_history(((1 << 18) + (7 * number + k) % 5 * 90_000,), like)
            except Exception as error:
                errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    finally:
        sys.setswitchinterval(before)
    assert not errors


def test_a_history_is_reused_once_nobody_holds_it():
    like = torch.zeros(())
    first = empty_history((1000, 1000), like)
    part, address = first[3:].detach(), first.data_ptr()
    del first
    second = empty_history((1000, 1000), like)
    assert second.data_ptr() != address, "a view still holds it"
    kept = {address, second.data_ptr()}
    del part, second
    pair = [empty_history((1000, n), like) for n in (999, 1000)]
    assert {t.data_ptr() for t in pair} == kept
    del pair
    third = empty_history((1000, 1000), like)
    address = third.data_ptr()
    del third
    assert empty_history((1000, 900), like).data_ptr() == address

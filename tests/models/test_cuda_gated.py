"""The kernels of gated networks and ODEs without a GPU: on a CPU, and compiled by NVRTC."""

from __future__ import annotations

import logging

import pytest
import test_gated
import torch
from helpers.agreement import assert_close, read_out
from helpers.cuda_program import OnCpu
from test_gated import CELLS, draw, name_of, outcome

from eigensweep.models.recurrence import gated_steps
from eigensweep.models.recurrence.cuda import compiler, kernels
from eigensweep.models.recurrence.cuda import gated as cuda_gated
from eigensweep.models.recurrence.cuda.gated import CLUSTERS, GatedShape, count_blocks
from eigensweep.models.recurrence.gated import lstm
from eigensweep.models.recurrence.gated_steps import LSTMSteps
from eigensweep.models.recurrence.goru import goru
from eigensweep.models.recurrence.goru_reference import goru_states
from eigensweep.models.recurrence.native.gated import Cell

SHARED_BYTES = {"sm_80": 163 << 10, "sm_90": 227 << 10, "sm_100": 227 << 10}
"""Shared memory that a block of each generation of devices can ask for."""
MOST_SPILLED = 72
"""Bytes that a thread may store and load again in a step. Fewer matrix entries would cost more.

With the NVRTC 13.0 that torch brings, one shape reaches 68 (the diagonal LSTM of 96 units, sm_80).
"""
SPILLING = {Cell.LEM: 160}
"""The same for a cell of which the largest sizes fit no other way: 321 to 352 units, four rows."""
KINDS = {**CELLS, "goru": ("goru", None, None)}
TOLERANCE = 1e-4


def fast(cell, x, leaves, **options):
    if cell[0] != "goru":
        return test_gated.fast(cell, x, leaves, **options)
    U, R, b, V, c, h0 = leaves
    n = R.shape[-1]
    logits, h = goru(x, U, R, b[: 2 * n], b[2 * n :], V, c, h0=h0, **options)
    return logits, h


def readable(cell, x, leaves, readout="all"):
    if cell[0] != "goru":
        return test_gated.readable(cell, x, leaves, readout)
    U, R, b, V, c, h0 = leaves
    n = R.shape[-1]
    return read_out(goru_states(x, U, R, b[: 2 * n], b[2 * n :], h0=h0), V, c, readout)


class Gated(OnCpu):
    """The kernels in place of `gated.launch`."""

    def launch(self, shape, S, *tensors):
        clusters = S.shape[0] * -(-S.shape[3] // shape.rows)
        arguments = cuda_gated.collect_arguments(S, *tensors)
        self.start(shape, shape.definitions(SHARED_BYTES["sm_90"]), clusters, arguments)


@pytest.fixture(scope="module")
def kernel(kernels_folder):
    return Gated(kernels_folder, cuda_gated.SOURCE, cuda_gated.ARGUMENT_TYPES)


@pytest.fixture
def on_cpu(kernel, monkeypatch):
    monkeypatch.setattr(cuda_gated, "launch", kernel.launch)
    monkeypatch.setattr(cuda_gated, "is_available", lambda steps, weights: True)
    monkeypatch.setattr(
        cuda_gated, "count_clusters", lambda cell, n, device: 16 // count_blocks(cell, n)
    )
    return kernel


def check(cell, sizes, inputs="symbols", readout="all", tolerance=TOLERANCE, **options):
    """Assert that the kernel gives values and gradients of the readable reference in float64."""
    x, leaves = draw(cell, sizes, inputs, torch.float32)
    x.requires_grad_(inputs == "values")
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    exact_x = x.detach().double().requires_grad_() if inputs == "values" else x
    actual = outcome(fast, cell, x, leaves, readout=readout, backend="cuda", **options)
    expected = outcome(readable, cell, exact_x, exact, readout=readout)
    assert_close([each.double() for each in actual], expected, tolerance)


@pytest.mark.parametrize("cell", KINDS.values(), ids=KINDS)
class TestTheKernelIsTheReference:
    @pytest.mark.quick_cases(2)
    def test_for_values_read_out_at_each_step_in_several_chunks(self, on_cpu, cell):
        check(cell, (5, 3, 19, 4, 3), "values", chunk=2)

    def test_for_symbols_read_out_at_the_last_step(self, on_cpu, cell):
        check(cell, (4, 5, 19, 3, 2), "symbols", "last")


DISTINCT = [KINDS[name] for name in KINDS if "reads" not in name and name != "lstm"]


class TestTheKernelIsTheReferenceAt:
    @pytest.mark.parametrize(("n", "blocks"), [(1, 1), (96, 1), (101, 2)])
    def test_each_kind_of_size(self, on_cpu, n, blocks):
        check(CELLS["lstm"], (3, 2, n, 2, 2))
        assert {shape.blocks for shape in on_cpu.shapes[-2:]} == {blocks}
        assert {shape.is_backward for shape in on_cpu.shapes[-2:]} == {True, False}

    @pytest.mark.parametrize(
        "cell", [KINDS[name] for name in ("lstm full", "gru cho", "cornn", "lem")], ids=name_of
    )
    def test_clusters_of_two_blocks(self, on_cpu, cell):
        check(cell, (3, 3, 133 if cell[0] == "cornn" else 99, 2, 2))
        assert on_cpu.shapes[-1].blocks == 2

    @pytest.mark.parametrize("name", ["lstm diagonal", "lstm full", "gru"])
    def test_blocks_of_a_cluster_expect_what_they_are_sent(self, on_cpu, name):
        """The last cluster has fewer rows than the others."""
        check(KINDS[name], (5, 9, 97, 2, 2), "values")
        assert (on_cpu.shapes[-1].rows, on_cpu.shapes[-1].blocks) == (2, 2)

    @pytest.mark.slow
    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    @pytest.mark.parametrize("blocks", [2, 4, 8])
    def test_the_largest_size_of_each_cluster(self, on_cpu, cell, blocks):
        ((n, _),) = [each for each in CLUSTERS[kind_of(cell)] if each[1] == blocks]
        check(cell, (2, 3, n - 1, 2, 2))
        assert on_cpu.shapes[-1].blocks == blocks

    @pytest.mark.parametrize(
        ("name", "n", "batch", "rows"),
        [("goru", 19, 18, 2), ("goru", 19, 35, 4), ("cornn", 117, 35, 4)],
    )
    def test_several_rows_a_cluster(self, on_cpu, name, n, batch, rows):
        check(KINDS[name], (3, batch, n, 2, 2))
        assert on_cpu.shapes[-1].rows == rows

    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    def test_several_lanes(self, on_cpu, cell):
        x, leaves = draw(cell, (4, 3, 19, 3, 2), "values", torch.float32, lanes=(2,))

        def losses(x, *leaves, backend):
            return sum(y.sin().sum() for y in fast(cell, x, leaves, backend=backend, chunk=3))

        lanes = torch.vmap(lambda *args: losses(*args, backend="cuda"))(x, *leaves)
        alone = torch.stack(
            [losses(x[i], *(leaf[i] for leaf in leaves), backend="torch") for i in range(2)]
        )
        assert_close([lanes], [alone], TOLERANCE)
        assert_close(
            torch.autograd.grad(lanes.sum(), leaves),
            torch.autograd.grad(alone.sum(), leaves),
            TOLERANCE,
        )

    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    def test_no_gradient_is_left_to_a_sum_over_all_steps(self, on_cpu, monkeypatch, cell):
        def refuse(steps, *history):
            raise AssertionError("the history of gradients is read for a sum")

        monkeypatch.setattr(gated_steps.GatedSteps, "sum_of_arguments", refuse)
        monkeypatch.setattr(gated_steps.LSTMSteps, "sums_of_vectors", refuse)
        monkeypatch.setattr(gated_steps.GORUSteps, "sums_of_vectors", refuse)
        x, leaves = draw(cell, (4, 3, 19, 3, 2), "values", torch.float32)
        outcome(fast, cell, x, leaves, backend="cuda")

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("cell", DISTINCT, ids=name_of)
    def test_a_state_that_is_not_finite_spoils_its_sequence_only(self, on_cpu, cell, value):
        x, leaves = draw(cell, (4, 6, 19, 3, 2), "symbols", torch.float32)
        leaves[5].data[1, 3] = value
        logits = fast(cell, x, leaves, backend="cuda")[0]
        expected = fast(cell, x, leaves, backend="torch")[0]
        others = [0, 2, 3, 4, 5]
        assert_close([logits[:, others]], [expected[:, others]], TOLERANCE)
        assert logits[:, 1].isfinite().equal(expected[:, 1].isfinite())


def shapes(cell, sizes, rows=kernels.ROWS):
    return [
        GatedShape(cell, n, r, count_blocks(cell, n), is_backward)
        for n in sizes
        for r in rows
        for is_backward in (False, True)
    ]


def compile_for(shape, device):
    definitions = dict(shape.definitions(SHARED_BYTES[device]))
    return compiler.compile_kernel(cuda_gated.SOURCE, definitions, device)


@pytest.mark.usefixtures("nvrtc")
class TestTheKernelIsCompiled:
    @pytest.mark.parametrize("cell", Cell)
    @pytest.mark.quick_cases(2)
    def test_the_largest_size_of_all_fits(self, cell):
        for shape in shapes(cell, [CLUSTERS[cell][-1][0]], rows=(4,)):
            most = SPILLING.get(cell, MOST_SPILLED)
            assert compile_for(shape, "sm_90").spilled_bytes <= most, shape

    @pytest.mark.parametrize("device", SHARED_BYTES)
    @pytest.mark.parametrize("cell", [Cell.LSTM, Cell.CORNN, Cell.LEM])
    @pytest.mark.quick_cases(2)
    def test_each_generation_of_devices_is_compiled_for(self, device, cell):
        compiled = compile_for(GatedShape(cell, 96, 1, 1, True), device)
        assert compiled.cubin.startswith(b"\x7fELF")
        assert compiled.spilled_bytes == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("cell", Cell)
    @pytest.mark.parametrize("device", SHARED_BYTES)
    def test_hardly_any_size_spills_registers(self, device, cell):
        largest = CLUSTERS[cell][0 if device == "sm_80" else -1][0]
        edges = {n for n, _ in CLUSTERS[cell] if n <= largest}
        grid = {*range(32, largest, 32), 120}  # 120: 32 threads could share fifteen sums a row
        offered = shapes(cell, sorted(edges | {n for n in grid if n <= largest}))
        spilled = {shape: compile_for(shape, device).spilled_bytes for shape in offered}
        most = SPILLING.get(cell, MOST_SPILLED)
        assert {shape: each for shape, each in spilled.items() if each > most} == {}
        assert sum(each > MOST_SPILLED for each in spilled.values()) <= (cell in SPILLING)

    def test_what_does_not_fit_into_shared_memory_is_refused(self):
        with pytest.raises(compiler.CompileError, match="do not fit into shared memory"):
            compile_for(GatedShape(Cell.LSTM, 512, 1, 8, False), "sm_90")


class TestChoice:
    def test_a_size_beyond_the_kernels_runs_by_steps_and_says_so(self, caplog):
        cuda_gated._is_loaded.cache_clear()
        try:
            with caplog.at_level(logging.WARNING):
                answers = [cuda_gated._is_loaded(Cell.LSTM, 385, 0) for _ in range(3)]
        finally:
            cuda_gated._is_loaded.cache_clear()
        assert answers == [False] * 3
        (record,) = caplog.records
        assert "lstm of 385 units runs step by step: the kernel takes at most 384" in (
            record.getMessage()
        )

    def test_all_that_may_be_chosen_is_loaded_at_the_first_use(self, monkeypatch):
        loaded = set()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(cuda_gated, "load_kernel", lambda shape, device: loaded.add(shape))
        cuda_gated._is_loaded.cache_clear()
        try:
            assert cuda_gated._is_loaded(Cell.GRU, 100, 0)
        finally:
            cuda_gated._is_loaded.cache_clear()
        assert loaded == set(shapes(Cell.GRU, [100]))
        rows = {kernels.choose_rows(size, 66) for size in range(1, 600)}
        assert rows <= {shape.rows for shape in loaded}

    def test_without_a_gpu_the_backend_is_refused_with_words(self):
        x, leaves = draw(CELLS["lstm"], (2, 2, 3, 2, 2), dtype=torch.float32)
        with pytest.raises(ValueError, match="needs float32, at most 384 units, a GPU"):
            lstm(x, *leaves[:5], backend="cuda")

    def test_the_cpu_keeps_its_own_steps(self):
        _, leaves = draw(CELLS["lstm"], (2, 2, 3, 2, 2), dtype=torch.float32)
        assert not cuda_gated.is_available(LSTMSteps, (leaves[1],))


def kind_of(cell):
    """Return the kernel's kind of a cell."""
    name, variant, _ = cell
    suffixes = {"diagonal": "_DIAGONAL", "output_full": "_FULL", "cho": "_CHO"}
    return Cell[name.upper() + suffixes.get(variant, "")]


def sizes_on_a_gpu(cell):
    """Return sizes of each number of blocks, the largest that the kernel takes among them."""
    largest = CLUSTERS[kind_of(cell)][-1][0]
    return [n for n in (2, 64, 96, 128, 138, 192, 256) if n < largest] + [largest]


@pytest.mark.parametrize("cell", KINDS.values(), ids=KINDS)
def test_the_kernel_takes_every_size_that_is_tried_on_a_gpu(cell):
    for n in sizes_on_a_gpu(cell):
        count_blocks(kind_of(cell), n)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "cell"),
    [
        pytest.param(n, cell, id=f"{name}-{n}")
        for name, cell in KINDS.items()
        for n in sizes_on_a_gpu(cell)
    ],
)
def test_on_a_gpu_the_kernel_is_the_reference(n, cell):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x, leaves = draw(cell, (50, 20, n, 5, 4), dtype=torch.float32)
    x, leaves = x.cuda(), [leaf.detach().cuda().requires_grad_() for leaf in leaves]
    assert_close(
        outcome(fast, cell, x, leaves, backend="cuda"),
        outcome(fast, cell, x, leaves, backend="torch"),
        2e-3,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("cell", KINDS.values(), ids=KINDS)
def test_on_a_gpu_a_captured_step_gives_the_same_bits_each_time(cell):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x, leaves = draw(cell, (50, 20, 100, 5, 4), dtype=torch.float32)
    x, leaves = x.cuda(), [leaf.detach().cuda().requires_grad_() for leaf in leaves]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        expected = outcome(fast, cell, x, leaves, backend="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured = outcome(fast, cell, x, leaves, backend="cuda")
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        for actual, other in zip(captured, expected, strict=True):
            assert torch.equal(actual, other)

"""The scan kernel without a GPU: its source runs on a CPU, and NVRTC compiles it."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
import torch
from helpers.agreement import assert_close, recur_readably
from helpers.cuda_program import OnCpu

from eigensweep.models.recurrence.complex_reference import FORMS
from eigensweep.models.recurrence.cuda import compiler, scan
from eigensweep.models.recurrence.cuda.scan import (
    CLUSTERS,
    PAIRED_CLUSTERS,
    ROWS,
    SOURCE,
    ScanShape,
    choose_shape,
    count_blocks,
)
from eigensweep.models.recurrence.steps import ACTIVATIONS
from eigensweep.models.recurrence.ungated import recur

SPILLING = {("sm_100", "modrelu", 192, 4): 16}
"""Bytes that a shape's backward pass spills with the NVRTC 13.0 of torch; none does with 13.5."""
MOST_SPILLED = 72
"""Bytes that a thread may store and load again in a step where a cluster has five or six rows.

With NVRTC 13.5 none of the shapes tried has more than 60.
"""
DEVICES = ("sm_80", "sm_90", "sm_100")


class Scan(OnCpu):
    """The kernel in place of `scan.launch`."""

    def launch(self, shape, Y, H, W, b, sums):
        lanes, times, batch, _ = Y.shape
        pointers = (tensor.data_ptr() for tensor in (Y, H, W, b, sums))
        strides, numbers = (Y.stride(0), H.stride(0)), scan.numbers_of(shape)
        clusters = lanes * -(-batch // shape.rows)
        arguments = (*pointers, *strides, times - 1, batch, *numbers)
        self.start(shape, shape.definitions, clusters, arguments)


@pytest.fixture(scope="module")
def kernel(kernels_folder):
    return Scan(kernels_folder, SOURCE, scan.ARGUMENT_TYPES)


@pytest.fixture
def on_cpu(kernel, monkeypatch):
    monkeypatch.setattr(scan, "launch", kernel.launch)
    monkeypatch.setattr(scan, "is_available", lambda W, activation: True)
    monkeypatch.setattr(scan, "count_clusters", lambda n, activation, device: 4)
    return kernel


def draw(n, *, batch=3, steps=5, symbols=4, outputs=2):
    generator = torch.Generator().manual_seed(n)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    W = normal(n, n) / n**0.5
    leaves = [normal(n, symbols), W, 0.1 * normal(n), normal(outputs, n), normal(outputs)]
    x = torch.randint(symbols, (steps, batch), generator=generator)
    return x, [leaf.requires_grad_() for leaf in (*leaves, normal(batch, n))]


def draw_pairs(n):
    """Draw the same for units in pairs: both units of one have the same threshold."""
    x, leaves = draw(n, batch=5, steps=4)
    leaves = [leaf.detach() for leaf in leaves]
    leaves[2] = leaves[2][::2].repeat_interleave(2)
    return x, [leaf.requires_grad_() for leaf in leaves]


def draw_stable(n):
    """Draw what is compared on a GPU: float32 gives the digits of float64, up to rounding.

    With W as `draw` makes it, states of some activations grow to 5e5 within 50 steps.
    """
    x, leaves = draw(n, batch=20, steps=50)
    W = leaves[1].detach()
    leaves[1] = (0.97 / torch.linalg.eigvals(W).abs().max() * W).requires_grad_()
    return x, leaves


def precise_results(x, leaves, activation):
    """Return `results` of the loop in float64."""
    leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
    return results(recur, x, leaves, activation=activation, backend="torch")


def results(run, x, leaves, **options):
    """Return logits, last state and the gradients of all leaves."""
    *others, h0 = leaves
    logits, h = run(x, *others, h0=h0, **options)
    gradients = torch.autograd.grad((logits.sin().sum() + h.cos().sum()), leaves)
    return [logits, h, *gradients]


TOLERANCE, GPU_TOLERANCE = 1e-4, 2e-3


class TestTheKernelIsTheReference:
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_for_each_activation(self, on_cpu, activation):
        x, leaves = draw(50)
        assert_close(
            results(recur, x, leaves, activation=activation, backend="cuda"),
            results(recur_readably, x, leaves, activation=activation),
            TOLERANCE,
        )

    @pytest.mark.parametrize("n", [1, 65, 192, 250])
    def test_for_each_kind_of_size(self, on_cpu, n):
        x, leaves = draw(n, steps=3)
        assert_close(
            results(recur, x, leaves, activation="tanh", backend="cuda"),
            results(recur_readably, x, leaves, activation="tanh"),
            TOLERANCE,
        )
        assert {shape.units for shape in on_cpu.shapes[-2:]} == {n}
        assert {shape.is_backward for shape in on_cpu.shapes[-2:]} == {True, False}

    @pytest.mark.parametrize("activation", FORMS)
    @pytest.mark.parametrize("n", [6, 170])
    def test_for_units_in_pairs(self, on_cpu, n, activation):
        x, leaves = draw_pairs(n)
        assert_close(
            results(recur, x, leaves, activation=activation, backend="cuda"),
            results(recur, x, leaves, activation=activation, backend="torch"),
            TOLERANCE,
        )
        assert {shape.is_backward for shape in on_cpu.shapes[-2:]} == {True, False}

    @pytest.mark.parametrize(("n", "batch", "rows"), [(250, 5, 2), (250, 18, 5), (321, 2, 1)])
    def test_blocks_of_a_cluster_expect_what_they_are_sent(self, on_cpu, n, batch, rows):
        """The last cluster has fewer rows; or the last block's last warps have no unit to send."""
        x, leaves = draw(n, batch=batch, steps=4)
        assert_close(
            results(recur, x, leaves, activation="relu", backend="cuda"),
            results(recur_readably, x, leaves, activation="relu"),
            TOLERANCE,
        )
        assert on_cpu.shapes[-1].rows == rows

    @pytest.mark.slow
    @pytest.mark.parametrize("n", [300, 512])
    def test_for_clusters_of_four_and_eight_blocks(self, on_cpu, n):
        x, leaves = draw(n, steps=2)
        assert_close(
            results(recur, x, leaves, activation="tanh", backend="cuda"),
            results(recur_readably, x, leaves, activation="tanh"),
            TOLERANCE,
        )

    def test_in_several_chunks_read_out_at_the_last_step(self, on_cpu):
        x, leaves = draw(40, steps=7)
        options = {"activation": "modrelu", "readout": "last"}
        assert_close(
            results(recur, x, leaves, backend="cuda", chunk=3, **options),
            results(recur_readably, x, leaves, **options),
            TOLERANCE,
        )

    @pytest.mark.parametrize(
        ("activation", "batch", "rows"), [("relu", 9, 3), ("modrelu", 23, ROWS[-1])]
    )
    def test_for_more_rows_than_processors(self, on_cpu, activation, batch, rows):
        x, leaves = draw(33, batch=batch)
        assert_close(
            results(recur, x, leaves, activation=activation, backend="cuda"),
            results(recur_readably, x, leaves, activation=activation),
            TOLERANCE,
        )
        assert on_cpu.shapes[-1].rows == rows

    def test_for_several_lanes(self, on_cpu):
        lanes = [draw(20) for _ in range(3)]
        x = lanes[0][0]
        W = torch.stack([leaves[1].detach() * scale for scale, (_, leaves) in enumerate(lanes, 1)])
        U, _, b, V, c, h0 = (leaf.detach() for leaf in lanes[0][1])

        def one(W, backend):
            return recur(x, U, W, b, V, c, h0=h0, activation="tanh", backend=backend)[0]

        actual = torch.vmap(lambda W: one(W, "cuda"))(W)
        assert_close(actual, [one(each, "torch") for each in W], TOLERANCE)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    @pytest.mark.parametrize("activation", ACTIVATIONS)
    def test_what_is_not_finite_passes_through_as_in_pytorch(self, on_cpu, activation, value):
        x, leaves = draw(50)
        h0 = leaves[-1].detach().clone()
        h0[1, 3] = value
        options = {"activation": activation, "h0": h0}
        for one, other in zip(
            recur(x, *leaves[:5], backend="cuda", **options),
            recur(x, *leaves[:5], backend="torch", **options),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True)


def shapes(sizes, activation, rows=ROWS):
    blocks = {n: count_blocks(n, is_paired=activation in FORMS) for n in sizes}
    return [
        ScanShape(n, r, blocks[n], is_backward, activation)
        for n in sizes
        for r in rows
        for is_backward in (False, True)
    ]


def compile_for(shape, device):
    return compiler.compile_kernel(SOURCE, dict(shape.definitions), device)


@pytest.mark.usefixtures("nvrtc")
class TestTheKernelIsCompiled:
    @pytest.mark.parametrize(
        ("clusters", "activation"), [(CLUSTERS, "modrelu"), (PAIRED_CLUSTERS, "smoothed_modrelu")]
    )
    @pytest.mark.quick_cases(1)
    def test_the_largest_size_of_each_cluster_spills_no_registers(self, clusters, activation):
        for shape in shapes([most for most, _ in clusters], activation, rows=(4,)):
            compiled = compile_for(shape, "sm_90")
            assert (compiled.spilled_bytes, compiled.registers <= 128) == (0, True), shape

    @pytest.mark.parametrize("device", DEVICES)
    def test_each_generation_of_devices_is_loaded_for(self, device):
        compiled = compile_for(ScanShape(192, 1, 1, True, "modrelu"), device)
        assert compiled.cubin.startswith(b"\x7fELF")
        assert compiled.spilled_bytes == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("activation", ["modrelu", "tanh", "shifted_modrelu"])
    @pytest.mark.parametrize("device", DEVICES)
    def test_no_size_spills_registers(self, device, activation):
        clusters = PAIRED_CLUSTERS if activation in FORMS else CLUSTERS
        largest = clusters[0][0] if device == "sm_80" else scan.LARGEST
        for shape in shapes(range(32, largest + 1, 32), activation):
            spilled = compile_for(shape, device).spilled_bytes
            known = SPILLING.get((device, activation, shape.units, shape.rows), 0)
            assert spilled <= (MOST_SPILLED if shape.rows > 4 else known), (shape, device)

    @pytest.mark.parametrize("n", [192, 512])
    @pytest.mark.quick_cases(1)
    def test_the_most_rows_of_a_cluster_spill_few_registers(self, n):
        for shape in shapes([n], "modrelu", rows=ROWS[-1:]):
            assert compile_for(shape, "sm_90").spilled_bytes <= MOST_SPILLED, shape

    def test_an_unknown_device_is_refused_with_the_compilers_words(self):
        with pytest.raises(compiler.CompileError, match="sm_1"):
            compile_for(ScanShape(8, 1, 1, False, "tanh"), "sm_1")

    def test_a_kernel_is_loaded_once(self, tmp_path, monkeypatch):
        shape = ScanShape(8, 1, 1, False, "tanh")
        first = compiler.load_cubin(tmp_path, SOURCE, dict(shape.definitions), "sm_90")
        monkeypatch.setattr(compiler, "compile_kernel", None)
        assert compiler.load_cubin(tmp_path, SOURCE, dict(shape.definitions), "sm_90") == first
        assert [path.suffix for path in tmp_path.iterdir()] == [".cubin"]

    def test_a_cache_that_takes_no_file_costs_the_cache_alone(self, tmp_path, caplog):
        (tmp_path / "file").write_text("in the way of a folder")
        shape = ScanShape(8, 1, 1, False, "tanh")
        made = [
            compiler.load_cubin(tmp_path / "file", SOURCE, dict(shape.definitions), "sm_90")
            for _ in range(2)
        ]
        assert all(cubin.startswith(b"\x7fELF") for cubin in made)
        (record,) = caplog.records
        assert "compiled anew in each process" in record.getMessage()


class TestChoice:
    @pytest.mark.parametrize(
        ("sequences", "clusters", "rows"),
        [(132, 132, 1), (133, 132, 2), (640, 132, 5), (16, 16, 1), (17, 16, 2)],
    )
    def test_a_cluster_takes_as_few_rows_as_let_all_run_at_once(self, sequences, clusters, rows):
        assert choose_shape(192, sequences, clusters).rows == rows

    def test_in_several_waves_the_last_is_not_nearly_empty(self):
        assert choose_shape(192, 2560, clusters=132).rows == 5  # four waves; four rows take five

    def test_more_units_than_fit_are_refused(self):
        with pytest.raises(ValueError, match="at most 512 units; there are 513"):
            count_blocks(513)

    def test_without_a_gpu_the_backend_is_refused_with_words(self):
        x, leaves = draw(8)
        with pytest.raises(ValueError, match="needs float32, at most 512 units, a GPU"):
            recur(x, *leaves[:5], activation="tanh", backend="cuda")

    def test_a_kernel_that_cannot_be_compiled_is_named_once(self, monkeypatch, caplog):
        def refuse(shape, device):
            raise compiler.CompileError("NVRTC cannot be used: no library")

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(scan, "load_kernel", refuse)
        scan._is_loaded.cache_clear()
        try:
            with caplog.at_level(logging.WARNING):
                assert [scan._is_loaded(100, "tanh", 0) for _ in range(3)] == [False] * 3
        finally:
            scan._is_loaded.cache_clear()
        (record,) = caplog.records
        assert "100 units runs step by step: NVRTC cannot be used" in record.getMessage()

    def test_an_older_gpu_runs_one_block_only(self, monkeypatch):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(scan, "load_kernel", lambda shape, device: object())
        scan._is_loaded.cache_clear()
        try:
            fitting = [scan._is_loaded(n, "tanh", 0) for n in (192, 193)]
            assert fitting == [True, False]
        finally:
            scan._is_loaded.cache_clear()

    def test_all_that_may_be_chosen_is_loaded_at_the_first_use(self, monkeypatch):
        loaded = set()
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(scan, "load_kernel", lambda shape, device: loaded.add(shape))
        scan._is_loaded.cache_clear()
        try:
            assert scan._is_loaded(300, "tanh", 0)
        finally:
            scan._is_loaded.cache_clear()
        sizes, directions = range(1, 600), (False, True)
        choices = {
            choose_shape(300, size, 132, is_backward=is_backward, activation="tanh")
            for size in sizes
            for is_backward in directions
        }
        assert choices <= loaded

    def test_nothing_is_loaded_while_a_graph_is_captured(self, monkeypatch):
        pytest.importorskip("cuda.bindings.driver")
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with pytest.raises(RuntimeError, match="run the network once before"):
            scan.load_kernel(ScanShape(11, 1, 1, False, "tanh"), 0)


def test_clipped_states_leave_the_kernel_with_one_line_of_log(caplog):
    scan._warn_of_clipping.cache_clear()
    W = mock.Mock(is_cuda=True, dtype=torch.float32, shape=(1, 8, 8))
    assert not scan.is_available(W, "clipped")
    assert not scan.is_available(W, "clipped")
    assert [record.message for record in caplog.records] == [
        "a recurrence with clipped states runs step by step: the kernel does not clip"
    ]


@pytest.mark.parametrize("activation", [*ACTIVATIONS, *FORMS])
@pytest.mark.parametrize("n", [2, 64])
def test_what_a_gpu_tries_is_alike_in_float32_and_float64(n, activation):
    x, leaves = draw_stable(n)
    found = results(recur, x, leaves, activation=activation, backend="torch")
    expected = precise_results(x, leaves, activation)
    assert_close([each.double() for each in found], expected, GPU_TOLERANCE / 4)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", [*ACTIVATIONS, *FORMS])
@pytest.mark.parametrize("n", [2, 64, 138, 192, 256, 300, 512])
def test_on_a_gpu_the_kernel_is_the_reference(n, activation):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x, leaves = draw_stable(n)
    x, leaves = x.cuda(), [leaf.detach().cuda().requires_grad_() for leaf in leaves]
    expected = precise_results(x, leaves, activation)
    for backend in ("cuda", "torch"):
        found = results(recur, x, leaves, activation=activation, backend=backend)
        assert_close([each.double() for each in found], expected, GPU_TOLERANCE)


@pytest.mark.gpu
def test_on_a_gpu_a_captured_step_is_the_same_in_any_thread():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    x, leaves = draw(64, batch=20, steps=50)
    x, leaves = x.cuda(), [leaf.detach().cuda().requires_grad_() for leaf in leaves]

    def run():
        return results(recur, x, leaves, activation="modrelu", backend="cuda")

    with ThreadPoolExecutor(1) as pool:
        expected = pool.submit(run).result()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        captured = run()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert_close(captured, expected, 1e-5)

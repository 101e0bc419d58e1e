"""A GPU that cannot be used, as a process, an engine and a sweep meet it. CUDA is played."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace

import pytest
import torch
from orders import make_order
from sweeps import Bench, at, spec

from eigensweep.protocol import code
from eigensweep.protocol.code import ForeignCodeError, check_build
from eigensweep.protocol.messages import EngineNeed, Report
from eigensweep.results.trial_result import Result
from eigensweep.training import devices
from eigensweep.training.devices import DeviceError, find_crowding, try_out
from eigensweep.training.lanes.engine.register import EngineError
from eigensweep.workers.processes import engine_actor as actor_module
from eigensweep.workers.processes import runner, trial_process
from eigensweep.workers.processes.engine_actor import EngineActor
from eigensweep.workers.processes.runner import LOST, REPORT, Runner

LOST_IN_TRAINING = "CUDA error: unspecified launch failure"
FOREVER = (
    "No CUDA GPUs are available",
    "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    "CUDA unknown error - this may be due to an incorrectly set up environment",
    "CUDA error: no kernel image is available for execution on the device",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA out of memory. Tried to allocate 2.00 MiB",
)


@pytest.fixture(autouse=True)
def forget():
    """Let each test try devices out anew."""
    try_out.cache_clear()
    yield
    try_out.cache_clear()


@pytest.fixture
def with_cuda(monkeypatch):
    """Play a PyTorch that was built for CUDA; return what `play` lets its device do."""
    monkeypatch.setattr(code, "_is_built_for_gpus", lambda: True)
    multiply = devices._multiply

    def play(fails: str | None = None, wrong: bool = False) -> list[str]:
        tried: list[str] = []

        def answer(device):
            if device == "cpu":
                return multiply(device)
            tried.append(device)
            if fails is not None:
                raise RuntimeError(fails)
            return [[0.0]] if wrong else multiply("cpu")

        monkeypatch.setattr(devices, "_multiply", answer)
        return tried

    return play


def train(storage, error=None, monkeypatch=None):
    """Return what a trial's process on a GPU tells of its first rung, and its report."""
    if error is not None:

        def fail(order, device):
            raise error

        monkeypatch.setattr(runner, "open_attempt", fail)
    told = Runner(make_order(storage=str(storage)).to_dict(), "cuda", "n1").train()
    return told, Report.from_dict(json.loads(told[REPORT]))


class TestADevice:
    @pytest.mark.parametrize("words", FOREVER)
    def test_that_cannot_be_used_is_the_nodes_fault_from_the_start(
        self, with_cuda, tmp_path, words
    ):
        with_cuda(fails=words)
        told, report = train(tmp_path)
        assert (told[LOST], report.outcome, report.lost_by) == (True, None, "node")
        assert report.place.node_id == "n1"
        assert words in report.lost
        assert "nvidia-smi" in report.lost
        assert list(tmp_path.iterdir()) == [], "the trial has not begun in the store"

    def test_that_computes_wrongly_is_one_that_cannot_be_used(self, with_cuda):
        with_cuda(wrong=True)
        with pytest.raises(DeviceError, match="the product of two matrices is wrong there"):
            try_out("cuda")

    def test_that_works_is_tried_once_in_a_process(self, with_cuda):
        tried = with_cuda()
        for _ in range(3):
            try_out("cuda")
        assert tried == ["cuda"]

    def test_that_is_a_processor_is_not_tried(self, with_cuda):
        assert with_cuda(fails="asked") == []
        try_out("cpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_of_this_machine_cannot_be_used_without_a_gpu(self):
        with pytest.raises(DeviceError, match="PyTorch cannot use cuda"):
            try_out("cuda")


@pytest.mark.parametrize(("kind", "found"), [("cuda", "13.0"), ("hip", "7.0"), ("cuda", None)])
def test_the_build_of_pytorch_is_read_without_loading_it(monkeypatch, tmp_path, kind, found):
    (tmp_path / "version.py").write_text(f"{kind} = {found!r}\n")
    spec = type("Spec", (), {"origin": str(tmp_path / "__init__.py")})
    monkeypatch.setattr(code, "find_spec", lambda name: spec)
    code._is_built_for_gpus.cache_clear()
    try:
        assert code._is_built_for_gpus() is (found is not None)
    finally:
        code._is_built_for_gpus.cache_clear()


def test_a_node_with_gpus_but_pytorch_for_cpus_is_not_fit(monkeypatch, tmp_path):
    monkeypatch.setattr(code, "_is_built_for_gpus", lambda: False)
    check_build("cpu")
    with pytest.raises(ForeignCodeError, match="offers GPUs, and its PyTorch"):
        check_build("cuda")
    _, report = train(tmp_path)
    assert (report.outcome, report.lost_by) == (None, "node")


class TestMemory:
    @pytest.fixture
    def gigabytes(self, monkeypatch):
        """Return a function that plays a GPU of 80 GB by how much is free, and how much is ours."""

        def play(free, own):
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 1e9, 80e9))
            monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: own * 1e9)

        return play

    @pytest.mark.parametrize(
        ("free", "own", "share", "is_crowded"),
        [(1, 10, 1.0, True), (1, 76, 1.0, False), (1, 18, 0.25, False), (0, 1, 0.25, True)],
    )
    def test_that_others_hold_is_told_from_what_a_trial_needs(
        self, gigabytes, free, own, share, is_crowded
    ):
        gigabytes(free, own)
        words = find_crowding("cuda", share)
        assert (words is not None) == is_crowded
        assert words is None or "of its 80.0 GB" in words

    def test_crowded_is_the_nodes_fault_a_large_trial_its_own(
        self, with_cuda, gigabytes, monkeypatch, tmp_path
    ):
        error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        gigabytes(free=1, own=10)
        _, report = train(tmp_path, error, monkeypatch)
        assert (report.outcome, report.lost_by) == (None, "node")
        gigabytes(free=1, own=76)
        _, report = train(tmp_path, error, monkeypatch)
        assert (report.outcome, report.lost) == ("failed", None)


class TestADeviceThatIsLost:
    def test_loses_the_attempt_with_its_traceback(self, with_cuda, monkeypatch, tmp_path):
        error = torch.AcceleratorError(LOST_IN_TRAINING)
        told, report = train(tmp_path, error, monkeypatch)
        assert (told[LOST], report.outcome, report.lost_by) == (True, None, "device")
        assert "Traceback" in report.lost

    @pytest.fixture
    def bench(self, tmp_path):
        there = {"n1", "n2"}
        content = spec({"space": {"optimizer.lr": [1e-1]}})
        return Bench(tmp_path, content, retries=0, find_nodes=lambda: there)

    def lose(self, b, node):
        job = b.sweep.next_job()
        b.sweep.begin(0, job.attempt)
        b.sweep.lose(0, job.attempt, LOST_IN_TRAINING, by="device", place=at(node))
        return job

    def test_sends_the_trial_elsewhere_and_counts_no_retry(self, bench):
        self.lose(bench, "n1")
        assert bench.sweep.entries[0].state == "waiting"
        job = bench.sweep.next_job()
        assert job.avoid == ("n1",)
        bench.sweep.begin(0, job.attempt)
        bench.sweep.end(0, "completed", Result(value=1.0))
        assert bench.sweep.notices() == [], "nobody knows yet whether the node is to blame"

    def test_twice_in_a_row_under_one_trial_has_failed_it(self, bench):
        for node in ("n1", "n2"):
            assert self.lose(bench, node).entry.state == "waiting"
        failed = bench.sweep.entries[0]
        assert failed.state == "failed"
        words = "2 devices were lost under it in a row; the last: CUDA error"
        assert failed.error.startswith(words)

    def test_counts_no_longer_once_the_trial_comes_on(self, bench):
        for node in ("n1", "n2", "n1"):
            job = bench.sweep.next_job()
            bench.sweep.begin(0, job.attempt)
            bench.sweep.report(0, 5, {"objective": 1.0}, None)
            bench.sweep.lose(0, job.attempt, LOST_IN_TRAINING, by="device", place=at(node))
            assert bench.sweep.entries[0].state == "waiting"


class TestAGpuThatIsLostAgain:
    """Losses are counted by node and GPU, whoever trained there."""

    @pytest.fixture
    def bench(self, tmp_path):
        content = spec({"space": {"optimizer.lr": [1e-1, 1e-2, 1e-3, 1e-4]}})
        bench = Bench(tmp_path, content, retries=0, find_nodes=lambda: {"n1", "n2"})
        for number in range(4):
            self.begin(bench, number)
        return bench

    def begin(self, bench, number):
        job = bench.sweep.next_job()
        assert job.entry.number == number
        bench.sweep.begin(number, job.attempt)

    def lose(self, bench, number, gpu="0", pid=1, lanes=None):
        place = replace(at("n1"), device=f"cuda:{gpu}", pid=pid, lanes=lanes)
        bench.sweep.lose(number, 1, LOST_IN_TRAINING, by="device", place=place)
        return place

    def test_under_a_second_trial_leaves_its_node_out(self, bench):
        self.lose(bench, 0)
        assert bench.sweep.notices() == []
        self.lose(bench, 1)
        (notice,) = bench.sweep.notices()
        assert LOST_IN_TRAINING in notice.words
        assert bench.sweep.next_job().avoid == ("n1",)

    def test_is_another_one_than_its_neighbour(self, bench):
        for number in range(3):
            self.lose(bench, number, gpu=str(number))
        assert bench.sweep.notices() == []

    def test_counts_once_for_all_trials_of_its_engine(self, bench):
        for number in range(3):
            self.lose(bench, number, pid=7, lanes=8)
        assert bench.sweep.notices() == []
        self.lose(bench, 3, pid=8, lanes=8)
        assert [notice.kind for notice in bench.sweep.notices()] == ["node"]

    def test_under_an_engine_is_its_death_and_fails_no_trial(self, bench):
        for pid in range(4):
            self.lose(bench, 0, gpu=str(pid), pid=pid, lanes=8)
            assert bench.sweep.entries[0].state == "waiting"
            job = bench.sweep.next_job()
            assert job.alone == (pid > 0), "two engines died under it: it trains alone"
            bench.sweep.begin(0, job.attempt)

    def test_counts_no_longer_once_a_trial_comes_on_there(self, bench):
        place = self.lose(bench, 0)
        bench.sweep.report(1, 5, {"objective": 1.0}, place)
        self.lose(bench, 2)
        assert bench.sweep.notices() == []


def test_a_lost_device_is_named_with_its_node_and_gpu(with_cuda, monkeypatch):
    with_cuda()
    monkeypatch.setattr(actor_module.os, "_exit", lambda status: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    need = EngineNeed(lanes=2, trials=3, cpus=1.0, gpus=1.0)
    order = replace(make_order(), engine=need)

    class Lost:
        longest_turn, is_broken = 0.0, True

        def ask(self, order, seconds):
            raise EngineError("it could not go on") from RuntimeError(LOST_IN_TRAINING)

        def seconds_in_turn(self):
            return 0.0

        def leave(self, order, commit=False):
            pass

    async def scene() -> Report:
        engine = EngineActor("cuda:3", "3", need, order.code)
        engine._open = Lost
        assert await engine.join(order)
        told = await engine.advance(order)
        engine._watch.cancel()
        return told

    report = asyncio.run(scene())
    assert (report.lost_by, report.place.device, report.place.lanes) == ("device", "cuda:3", 2)


class TestTheGpuOfAProcess:
    @pytest.fixture(autouse=True)
    def _no_traces(self, monkeypatch):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
        monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
        monkeypatch.setattr(trial_process.ray, "is_initialized", lambda: True)

    def test_is_the_one_that_ray_gave_it_and_sees_no_other(self, monkeypatch):
        monkeypatch.setattr(trial_process.ray, "get_gpu_ids", lambda: [3])
        assert trial_process.assigned_device() == "cuda:3"
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        monkeypatch.delenv("CUDA_DEVICE_ORDER")

    def test_stands_in_its_reports(self, with_cuda, tmp_path):
        with_cuda(fails="No CUDA GPUs are available")
        told = Runner(make_order(storage=str(tmp_path)).to_dict(), "cuda:3", "n1").train()
        assert Report.from_dict(json.loads(told[REPORT])).place.device == "cuda:3"

    def test_is_none_where_ray_gave_none(self, monkeypatch):
        monkeypatch.setattr(trial_process.ray, "get_gpu_ids", list)
        assert trial_process.assigned_device() == "cpu"


def test_an_engine_that_cannot_use_its_device_says_so_and_ends(with_cuda, monkeypatch):
    with_cuda(fails="No CUDA GPUs are available")
    monkeypatch.setattr(actor_module, "PAUSE_SECONDS", 0.0)
    ended = []
    monkeypatch.setattr(actor_module.os, "_exit", ended.append)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    need = EngineNeed(lanes=2, trials=3, cpus=1.0, gpus=1.0)
    order = replace(make_order(), engine=need)

    async def scene() -> None:
        engine = EngineActor("cuda:0", "0", need, order.code)
        with pytest.raises(DeviceError, match="No CUDA GPUs"):
            await engine.join(order)
        await engine._watch

    asyncio.run(scene())
    assert ended == [0]

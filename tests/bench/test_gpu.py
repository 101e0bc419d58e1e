"""The measurement on a GPU, tried out on a CPU: its numbers mean nothing there."""

from __future__ import annotations

import json

import pytest
import torch

from bench import gpu


def test_it_measures_each_variant_of_a_workload_and_writes_the_numbers(tmp_path):
    arguments = ["--device", "cpu", "--quick", "--no-tests", "--rounds", "2"]

    status = gpu.main([*arguments, "--workloads", "copying-20", "--out", str(tmp_path)])

    assert status == 0
    (workload,) = json.loads((tmp_path / "steps.json").read_text())["workloads"]
    names = [row["variant"].partition(" 1")[0] for row in workload["rows"]]
    kinds = ("kernel", "loop", "one CPU core")
    ours = {f"{model}, {kind}" for model in gpu.MODELS for kind in kinds}
    assert ours < set(names)
    assert "nn.RNN" in names
    assert all(row["ms"] > 0 for row in workload["rows"])


def test_a_variant_that_fails_is_named_and_the_others_are_measured():
    def fail():
        raise RuntimeError("no such kernel\nand more")

    times, failed = gpu.time_variants({"bad": fail, "good": lambda: None}, "cpu", 3, 60)

    assert failed == {"bad": "RuntimeError: no such kernel"}
    assert len(times["good"]) == 3


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    assert gpu.main([]) == 2
    assert "PyTorch finds none" in capsys.readouterr().out


def test_the_gpu_tests_are_found_and_skipped_where_there_is_no_gpu(capfd):
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here: `make gpu` runs them")

    assert gpu.run_tests() == 0
    assert "skipped" in capfd.readouterr().out

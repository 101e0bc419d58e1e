"""`make bench` in small: it measures what it says, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_benchmark_of_overhead_measures_trials_and_reads(tmp_path):
    numbers = tmp_path / "numbers.json"
    small = ["--trials=4", "--rounds=1", "--reads=3", "--plain-trials=2", f"--json={numbers}"]
    subprocess.run(
        [sys.executable, "-m", "bench.overhead", *small],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    measured = json.loads(numbers.read_text())
    (once,) = measured["rounds"]
    assert once["trials_a_second"] > 0
    assert once["driver_start_seconds"] > 0
    assert min(measured["plain_trials_a_second"]) > 0
    assert all(milliseconds > 0 for milliseconds in measured["reads_ms"].values())


def run_small(module, numbers, *arguments):
    """Run a benchmark in its small form and return what it wrote."""
    command = [sys.executable, "-m", module, "--quick", "--rounds=2", f"--json={numbers}"]
    subprocess.run([*command, *arguments], cwd=Path(__file__).parents[2], check=True)
    return json.loads(numbers.read_text())


@pytest.mark.slow
def test_the_bench_of_models_compares_loop_lstm_and_limit(tmp_path):
    picture = tmp_path / "cost"
    models = ["--models", "exprnn", "lstm", "--plot-models", "exprnn", f"--plot={picture}"]
    workloads = ["--workloads", "copying-20", "mnist-128", "ptb-32"]
    measured = run_small("bench.models", tmp_path / "numbers.json", *models, *workloads)
    assert measured["environment"]["threads"] == 1
    assert [w["workload"] for w in measured["workloads"]] == workloads[1:]
    assert picture.with_suffix(".png").stat().st_size > 0
    assert picture.with_suffix(".svg").stat().st_size > 0
    sweeps = [w for points in measured["sweeps"].values() for w in points]
    assert len(sweeps) == 4
    for workload in measured["workloads"] + sweeps:
        for row in workload["rows"]:
            times = [row[f"{kind}_ms"] for kind in ("ours", "loop", "lstm", "limit")]
            ratios = [row[f"{kind}_ratio"] for kind in ("loop", "lstm", "limit")]
            assert all(0 < number < inf for number in times + ratios)
    for workload in measured["workloads"]:
        assert [row["model"] for row in workload["rows"]] == ["exprnn", "lstm"]
        with_memory = [row["model"] for row in workload["rows"] if "ours_mb" in row]
        assert with_memory == (["exprnn", "lstm"] if workload["floor"] else [])


@pytest.mark.slow
def test_the_benchmark_of_drawing_tells_the_share_of_each_task(tmp_path):
    measured = run_small("bench.drawing", tmp_path / "numbers.json")
    assert {"adding", "copying", "denoise"} <= {row["case"] for row in measured["cases"]}
    assert len(measured["cases"]) + len(measured["left_out"]) == 9
    for row in measured["cases"]:
        assert 0 < row["draw_ms"] < inf
        assert 0 < row["step_ms"] < inf
        assert row["within_floor"] is (row["share_percent"] <= 5)


@pytest.mark.slow
def test_the_sweep_in_lanes_runs_through_the_service_on_a_cpu(tmp_path):
    numbers = tmp_path / "numbers.json"
    options = ["--device", "cpu", "--quick", "--lanes", "8", f"--json={numbers}"]
    subprocess.run(
        [sys.executable, "-m", "bench.gpu_service", *options],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    measured = json.loads(numbers.read_text())
    assert measured["trials_an_hour"] > 0
    assert 0 <= measured["idle_though_wanted_percent"] <= 100


@pytest.mark.slow
def test_the_benchmark_of_delivery_brings_every_trial_to_mlflow(tmp_path):
    numbers = tmp_path / "numbers.json"
    subprocess.run(
        [sys.executable, "-m", "bench.delivery", "--trials=5", f"--json={numbers}"],
        cwd=Path(__file__).parents[2],
        check=True,
    )
    measured = json.loads(numbers.read_text())
    assert measured["trials"] == 5
    assert 0 < measured["trials_a_second"] < inf

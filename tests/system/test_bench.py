"""`make bench` in small: it measures what it says, and leaves nothing running."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(300)
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
    assert measured["plain_trials_a_second"] > 0
    assert all(milliseconds > 0 for milliseconds in measured["reads_ms"].values())

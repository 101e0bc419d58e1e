"""`make run`, as a person or a CI machine runs it."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from helpers.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def run_quickstart(home: Path, mark: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EIGENSWEEP_")}
    kept["PATH"] = os.defpath  # `make` does not activate the environment
    return subprocess.run(
        [sys.executable, "-m", "eigensweep.command.quickstart"],
        cwd=ROOT,
        env={**kept, **environment, "EIGENSWEEP_HOME": str(home), "QUICKSTART": mark},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
    )


def find_marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("QUICKSTART") == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


@pytest.mark.slow
def test_a_service_that_does_not_start_shows_its_logs_end(tmp_path: Path) -> None:
    done = run_quickstart(tmp_path, "refused", EIGENSWEEP_HOST="0.0.0.0")

    assert done.returncode == 1
    assert "error: the service ended; its log ends with:" in done.stdout
    assert "set EIGENSWEEP_TOKEN" in done.stdout


@pytest.mark.slow
def test_nine_trials_are_ranked_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    mark = uuid.uuid4().hex

    done = run_quickstart(tmp_path, mark)

    assert done.returncode == 0, done.stdout + (tmp_path / "service.log").read_text()[-4000:]
    ranked = re.findall(
        r"^(\d+) +\d+ +(\w+) .*completed .*/runs/\w+\?workflowType=machine_learning$",
        done.stdout,
        re.MULTILINE,
    )
    assert [int(rank) for rank, _ in ranked] == list(range(1, 10))
    assert {arm for _, arm in ranked} == {"scornn", "enrnn", "lstm"}
    assert f"source {Path(sys.executable).parent / 'activate'}" in done.stdout
    assert find_marked(mark) == []
    with closing(sqlite3.connect(tmp_path / "mlflow" / "mlflow.db")) as runs:
        states = runs.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall()
    assert states == [("FINISHED", 10)]

"""The tests that need a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bench.gpu.sections import Notes, Plan
from bench.report import say

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.gpu"


def measure(plan: Plan, notes: Notes) -> None:
    """Run the tests that are marked `gpu`, with pytest if it is there, and note its exit status."""
    files = find_files()
    say(" ".join(str(path.relative_to(ROOT)) for path in files))
    try:
        run = subprocess.run(
            make_command(files), cwd=ROOT, env=make_environment(), timeout=plan.seconds, check=False
        )
    except subprocess.TimeoutExpired:
        notes.fail("tests", f"pytest was ended after {plan.seconds:.0f} seconds")
        return
    notes.keep("tests", {"exit_status": run.returncode, "files": [path.name for path in files]})
    if run.returncode:
        notes.fail("tests", f"pytest ended with status {run.returncode}")


def find_files() -> list[Path]:
    """Return the files with tests for a GPU that import neither Ray nor a service."""
    folders = (ROOT / "tests/models", ROOT / "tests/workers")
    found = (path for folder in folders for path in folder.glob("test_*.py"))
    return sorted(path for path in found if MARK in path.read_text())


def make_command(files: list[Path]) -> list[str]:
    """Return the command; it needs no plugin of pytest and none of the project's settings."""
    options = ["-q", "-ra", "-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "-o", "faulthandler_timeout=40"]
    options += ["-W", "ignore::pytest.PytestUnknownMarkWarning"]
    options += ["--rootdir", str(ROOT), "--import-mode=importlib", "-m", "gpu"]
    return [sys.executable, "-m", "pytest", *options, *map(str, files)]


def make_environment() -> dict[str, str]:
    """Return the environment in which tests find our packages and each other's helpers."""
    folders = ("tests", "tests/models", "tests/tasks", "tests/workers")
    helpers = (ROOT, *(ROOT / folder for folder in folders))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, helpers))}

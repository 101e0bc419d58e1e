"""The tests that need a GPU, several at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from bench.gpu.sections import Notes, Plan
from bench.report import say

ROOT = Path(__file__).parents[2]
MARK = "pytest.mark.gpu"

TESTED = {"test_cuda_scan": "scan", "test_cuda_gated": "gated", "test_lanes_cuda": "lanes"}
"""What each file of tests holds right; the first ones begin first."""

AT_ONCE = 6
"""Processes that share the GPU, if pytest-xdist is there."""


def measure(plan: Plan, notes: Notes) -> None:
    """Run the tests that are marked `gpu`, with pytest if it is there, and note what is wrong.

    What they have not come to counts as wrong.
    """
    files = find_files()
    say(" ".join(str(path.relative_to(ROOT)) for path in files))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = make_command(files, report)
        words, status = "", None
        try:
            run = subprocess.run(
                command, cwd=ROOT, env=make_environment(), timeout=plan.seconds, check=False
            )
            status = run.returncode
            words = f"pytest ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            words = f"pytest was ended after {plan.seconds:.0f} seconds"
        wrong = find_wrong(report)
    found = {"exit_status": status, "files": [path.name for path in files], "wrong": wrong}
    notes.keep("tests", found)
    if words:
        notes.fail("tests", f"{words}; not known to be right: {', '.join(wrong) or 'nothing'}")


def find_wrong(report: Path) -> list[str]:
    """Return what tests failed of, or did not run, by pytest's report; all without a report."""
    if not report.exists():
        return list(TESTED.values())
    ran, bad = set(), set()
    for case in ElementTree.parse(report).iter("testcase"):
        for name, what in TESTED.items():
            if name in f"{case.get('classname')} {case.get('name')}":
                ran.add(what)
                if case.find("failure") is not None or case.find("error") is not None:
                    bad.add(what)
    return [what for what in TESTED.values() if what in bad or what not in ran]


def find_files() -> list[Path]:
    """Return the files with tests for a GPU that import neither Ray nor a service."""
    folders = (ROOT / "tests/models", ROOT / "tests/workers")
    found = (path for folder in folders for path in folder.glob("test_*.py"))
    order = [f"{name}.py" for name in TESTED]
    marked = [path for path in found if MARK in path.read_text()]
    return sorted(marked, key=lambda p: (order.index(p.name) if p.name in order else 9, p))


def make_command(files: Iterable[Path], report: Path) -> list[str]:
    """Return the command; it needs none of the project's settings, and no plugin of pytest."""
    options = ["-q", "-ra", "-c", "/dev/null", "--noconftest", "-p", "no:cacheprovider"]
    options += ["--continue-on-collection-errors", "-o", "faulthandler_timeout=60"]
    options += ["-W", "ignore::pytest.PytestUnknownMarkWarning", "--junit-xml", str(report)]
    options += ["--rootdir", str(ROOT), "--import-mode=importlib", "-m", "gpu"]
    if find_spec("xdist") is not None:
        options += ["-n", str(min(AT_ONCE, os.cpu_count() or 1))]
    return [sys.executable, "-m", "pytest", *options, *map(str, files)]


def make_environment() -> dict[str, str]:
    """Return the environment in which tests find our packages and each other's helpers.

    What `PYTHONPATH` names already stays: pydantic may lie there.
    """
    folders = ("tests", "tests/helpers", "tests/models", "tests/workers")
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    helpers = (ROOT, *(ROOT / folder for folder in folders), *filter(None, named))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, helpers))}

"""Let faults happen to a real service, and print what was lost and how long it took to recover.

`python -m bench.faults` runs the tests of faults, which takes more than an hour, and prints the
tables of docs/faults.md from what they wrote down. `--record` prints those of an earlier run.

Each test runs a grid of slow trials on a service of its own, and passes only if every trial was
finished exactly once and no curve has a gap or a double. Seconds count from the end of the fault,
or, where service or database were kept down, from the moment when they were started again:

- back: until the part has a new process and the service says that it is ready;
- training: until each trial that was training has taken another step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.report import new_parser, say
from eigensweep.reports.markdown import table

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/system/test_seeded_killer.py",
    "tests/system/test_faults.py",
    "tests/system/test_cluster_faults.py",
)
AT_ONCE = ("in short", "for half an hour")
"""Runs in which everything is killed again and again, so that one fault hits the recovery from
another."""

Row = Mapping[str, Any]


def run_tests(record: Path) -> bool:
    """Run the tests, which add their lines to a record; return whether all passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", *TESTS]
    environment = {**os.environ, "FAULT_RECORD": str(record.absolute()), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def read(record: Path) -> list[Row]:
    """Return the lines of a record, one for each test."""
    return [json.loads(line) for line in record.read_text().splitlines()]


def summarize(seconds: Sequence[float | None]) -> str:
    """Return one time as it is, and of several the median and the longest.

    >>> summarize([3.14]), summarize([1.0, None, 2.0, 9.0]), summarize([None])
    ('3.1', '2.0 (longest 9.0)', '-')
    """
    known = [each for each in seconds if each is not None]
    if not known:
        return "-"
    if len(known) == 1:
        return f"{known[0]:.1f}"
    return f"{median(known):.1f} (longest {max(known):.1f})"


def group(tests: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the recoveries of each fault, in the order of their first time."""
    found: dict[str, list[Row]] = defaultdict(list)
    for test in tests:
        for each in test["recoveries"]:
            found[each["fault"]].append(each)
    return found


def describe_loss(test: Row) -> str:
    """Return in words what a run has lost."""
    twice = test["steps_taken_twice"]
    return (
        f"{test['trials']} of {test['trials']} trials finished once, "
        f"{test['attempts_lost']} attempts lost, {twice} of {test['steps']} steps taken twice"
    )


def print_faults(tests: Sequence[Row]) -> None:
    """Print a row for each fault: those that came alone, and the same among all others."""
    alone = group([test for test in tests if test["test"] not in AT_ONCE])
    among = group([test for test in tests if test["test"] in AT_ONCE])
    rows = []
    for fault in [*alone, *(each for each in among if each not in alone)]:
        counts = f"{len(alone[fault])} alone, {len(among[fault])} among others"
        cells = [
            summarize([each[key] for each in some[fault]])
            for some in (alone, among)
            for key in ("back", "training")
        ]
        rows.append([fault, counts, "nothing", *cells])
    heads = ["back, s", "training, s"]
    heads += [f"among others: {each}" for each in heads]
    say("\n".join(table(["fault", "how often", "lost", *heads], rows)))


def print_runs(tests: Sequence[Row]) -> None:
    """Print a row for each run: what came of its trials."""
    rows = [[t["test"], str(len(t["recoveries"])), describe_loss(t)] for t in tests]
    say("\n".join(table(["run", "faults", "what came of it"], rows)))


def main() -> None:
    """Print the tables."""
    parser = new_parser(__doc__)
    path = Path(".bench/faults.jsonl")
    parser.add_argument("--record", type=Path, help="print the tables of this earlier run")
    given: Path | None = parser.parse_args().record
    if given is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        if not run_tests(path):
            sys.exit(f"a fault lost something; what the tests wrote down is in {path}")
    tests = read(given or path)
    if failed := [test["test"] for test in tests if "failed" in test]:
        sys.exit(f"these runs did not pass, so there is no table of them: {', '.join(failed)}")
    print_faults(tests)
    say("")
    print_runs(tests)


if __name__ == "__main__":
    main()

"""Measure what the processes of trials cost: thin ones, and those that train for them.

`python -m bench.thin --trials 8 16 32` starts a service of its own for each number and prints the
seconds from the POST until so many trials are up, and the memory of their processes and of what
trains (PSS: pages that processes share are counted in parts). That is an engine with a lane for
each trial, or with `--forked` a process for each trial.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import psutil  # type: ignore[import-untyped]
from rich.console import Console

from bench.overhead import long_one
from bench.report import add_json, new_parser, write
from eigensweep.client import Client
from eigensweep.command.quickstart import running_service
from eigensweep.search_spaces.lanes import count_members

MEGABYTE = 1e6


def many(trials: int, forked: bool) -> dict[str, Any]:
    """Return a spec of so many long trials, all in one engine or each in a process of its own."""
    lanes = next(n for n in range(trials, 0, -1) if count_members(n, 1) <= trials)
    rates = [1e-3 * (1 + i / 1e6) for i in range(trials)]
    return long_one() | {
        "name": f"bench-thin-{trials}",
        "search": {"method": "grid", "space": {"optimizer.lr": rates}},
        "resources": {"cpus": 1 / trials} if forked else {"cpus": 1, "lanes": lanes},
        "limits": {"concurrency": trials},
    }


def find_pss(word: str) -> list[float]:
    """Return the megabytes of each process with this word in its title."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if word in " ".join(process.cmdline()):
                found.append(process.memory_full_info().pss / MEGABYTE)
        except psutil.Error:
            continue
    return found


def measure(client: Client, trials: int, forked: bool) -> dict[str, Any]:
    """Return seconds until all trials are up, and memory once they are."""
    posted = time.perf_counter()
    experiment = client.submit(many(trials, forked))
    up: list[float] = []
    while len(up) < trials:
        running = experiment.refresh().content["progress"]["running"]
        up += [time.perf_counter() - posted] * (running - len(up))
        time.sleep(0.1)
    while not experiment.refresh().content["progress"]["steps_done"]:
        time.sleep(0.1)
    thin = find_pss("ray::TrialProcess")
    trains = find_pss("processes.fork_server " if forked else "ray::EngineActor")
    experiment.cancel()
    experiment.wait(120)
    return {
        "trials": trials,
        "first_seconds": up[0],
        "all_seconds": up[-1],
        "thin_pss_mb": median(thin),
        "training_pss_mb": sum(trains),
    }


def main() -> None:
    """Measure, print a line for each number of trials, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--forked", action="store_true", help="a process for each trial, no lanes")
    add_json(parser, "thin")
    given = parser.parse_args()
    screen, rows = Console(), []
    for trials in given.trials:
        with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
            home = Path(folder) / "home"
            home.mkdir()
            with running_service(home, screen) as client:
                row = measure(client, trials, given.forked)
        rows.append(row)
        screen.print(
            f"{trials} trials: the first is up {row['first_seconds']:.1f} s after the POST, all "
            f"after {row['all_seconds']:.1f} s; the process of one takes "
            f"{row['thin_pss_mb']:.0f} MB (PSS, median), what trains all {trials} "
            f"{row['training_pss_mb']:.0f} MB"
        )
    write({"rows": rows}, given.json)


if __name__ == "__main__":
    main()

"""Measure what drivers cost that were forked from one process, with whose memory they share most.

`python -m bench.sharing` starts a service of its own, in which some experiments train at the same
time. Once each of them has ended some trials, it prints how many drivers there are, what these
hold, what their processor time was since the POST, and how long it took from the POST until then.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from rich.console import Console

from bench.overhead import WAITING_SECONDS, one_step
from bench.report import add_json, new_parser, say, table, write
from eigensweep.client import Client, Experiment
from eigensweep.command.quickstart import running_service
from eigensweep.workers.driver.process.driver_order import TITLE

TRIALS = 40
ENDED = 5
"""Trials that each experiment has ended when the drivers are looked at."""


def small(offset: int) -> dict[str, Any]:
    """Return a small experiment, which trains one trial at a time."""
    return one_step(TRIALS, offset) | {
        "training": {"steps": 200, "evaluate_every": 50, "log_every": 10},
        "limits": {"concurrency": 1},
    }


def find_drivers() -> list[psutil.Process]:
    """Return the drivers' processes that a service of this process has."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[0].startswith(TITLE):
                found.append(process)
    return found


def wait_until_ended(experiment: Experiment, trials: int) -> None:
    """Wait until an experiment has completed so many trials.

    Raises:
        TimeoutError: if that takes too long.
    """
    deadline = time.monotonic() + WAITING_SECONDS
    while experiment.refresh().content["progress"]["completed"] < trials:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{experiment.id} has not completed {trials} trials")
        time.sleep(0.2)


def measure(experiments: int, screen: Console) -> dict[str, Any]:
    """Return what the drivers of so many experiments hold."""
    settings = {"CPUS": experiments, "MAX_EXPERIMENTS": experiments}
    os.environ.update({f"EIGENSWEEP_{name}": str(value) for name, value in settings.items()})
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with running_service(home, screen) as client:
            return look(client, experiments)


def look(client: Client, experiments: int) -> dict[str, Any]:
    """Post the experiments, and look at their drivers while all of them train."""
    began = time.monotonic()
    posted = [client.submit(small(offset)) for offset in range(experiments)]
    for experiment in posted:
        wait_until_ended(experiment, ENDED)
    whole = time.monotonic() - began
    drivers = find_drivers()
    memory = [driver.memory_full_info() for driver in drivers]
    times = [driver.cpu_times() for driver in drivers]
    for experiment in posted:
        experiment.cancel()
    for experiment in posted:
        experiment.wait(WAITING_SECONDS)
    return {
        "drivers": len(drivers),
        "rss": sum(each.rss for each in memory) / 1e6,
        "pss": sum(each.pss for each in memory) / 1e6,
        "uss": sum(each.uss for each in memory) / 1e6,
        "cpu": sum(each.user + each.system for each in times),
        "seconds": whole,
    }


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    parser.add_argument("--experiments", type=int, default=4, help="default: %(default)s")
    add_json(parser, "sharing")
    given = parser.parse_args()
    screen = Console()
    found = measure(given.experiments, screen)
    headings = {
        "drivers": "drivers",
        "rss": "RSS, MB",
        "pss": "PSS, MB",
        "uss": "USS, MB",
        "cpu": "processor s",
        "seconds": f"s until each ended {ENDED} trials",
    }
    say(table([found], headings))
    write({"experiments": given.experiments, **found}, given.json)


if __name__ == "__main__":
    main()

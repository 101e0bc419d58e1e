"""Measure how soon an experiment trains after its POST.

`python -m bench.start` starts a service of its own and prints

- the seconds from the POST to the end of the first training step of the first trial, as the median
  over rounds: experiments one after another, each after a pause in which the service can get ready
  for the next one;
- how much of it passes until the first trial's process is there;
- the seconds for a row of short experiments that are all posted at once, until the last one has
  ended and MLflow has everything.
"""

from __future__ import annotations

import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.overhead import WAITING_SECONDS, one_step
from bench.report import add_json, new_parser, say, table, write
from eigensweep.client import Client, Experiment
from eigensweep.command.quickstart import running_service
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store, replicate_key


def short(trials: int, offset: int) -> dict[str, Any]:
    """Return a spec of `trials` short trials that no earlier experiment has trained."""
    return one_step(trials, offset) | {
        "training": {"steps": 20, "evaluate_every": 10, "log_every": 1}
    }


def seconds_of(text: str) -> float:
    """Return one of the API's times in seconds."""
    return datetime.fromisoformat(text).timestamp()


def wait_until_delivered(experiment: Experiment) -> None:
    """Wait until an experiment has ended and MLflow has everything.

    Raises:
        RuntimeError: if it was not completed.
    """
    experiment.wait(WAITING_SECONDS)
    while not experiment.refresh().content["delivered"]:
        time.sleep(0.05)
    if experiment.state != "completed":
        raise RuntimeError(f"the experiment is {experiment.state}, and should be completed")


def time_start(client: Client, storage: Path, offset: int) -> dict[str, float]:
    """Return the seconds from the POST of one experiment to what happens then."""
    posted = time.time()
    experiment = client.submit(short(1, offset))
    wait_until_delivered(experiment)
    trial = experiment.trial(0)
    (seed,) = TrialConfig.from_dict(trial["config"]).seeds
    key = replicate_key(experiment.id, 0, seed)
    steps = [point for point in Store(str(storage)).points(key) if point.step > 0]
    return {
        "began": seconds_of(trial["attempts"][-1]["started_at"]) - posted,
        "stepped": min(point.timestamp_ms for point in steps) / 1000 - posted,
    }


def time_row(client: Client, experiments: int, trials: int, offset: int) -> float:
    """Return the seconds that experiments which are posted at once take until all is delivered."""
    posted = time.time()
    row = [client.submit(short(trials, offset + i)) for i in range(experiments)]
    for experiment in row:
        wait_until_delivered(experiment)
    return time.time() - posted


def measure(given: Any, screen: Console) -> dict[str, Any]:
    """Return the numbers of a service."""
    starts, row = [], None
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with running_service(home, screen) as client:
            for i in range(given.rounds):
                time.sleep(given.pause)
                starts.append(time_start(client, home / "storage", i))
                say(f"{', '.join(f'{k} {v:.2f}' for k, v in starts[-1].items())}")
            if given.experiments:
                time.sleep(given.pause)
                row = time_row(client, given.experiments, given.trials, given.rounds)
                say(f"{given.experiments} experiments in {row:.1f} s")
    medians = {key: median(start[key] for start in starts) for key in starts[0]} if starts else {}
    return {**medians, "row": row, "rounds": starts}


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    for option, default, words in (
        ("--rounds", 5, "experiments of one trial, one after another"),
        ("--experiments", 8, "experiments that are posted at once; 0 leaves that out"),
        ("--trials", 8, "trials in each of these"),
    ):
        parser.add_argument(
            option, type=int, default=default, help=f"{words}; default: %(default)s"
        )
    parser.add_argument(
        "--pause", type=float, default=15.0, help="seconds before each; default: %(default)s"
    )
    add_json(parser, "start")
    given = parser.parse_args()
    screen = Console()
    found = measure(given, screen)
    headings = {
        "began": "its process is there",
        "stepped": "first step over",
        "row": f"{given.experiments} x {given.trials} trials",
    }
    say(table([found], headings))
    write({"pause": given.pause, **found}, given.json)


if __name__ == "__main__":
    main()

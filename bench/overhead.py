"""Measure what Eigensweep costs beside the training, and compare with a plain loop around Ray Tune.

`python -m bench.overhead` starts a service of its own and prints

- trials a second, for trials of one training step, from the start of the first trial until the last
  run is closed in MLflow, which is the experiment's own; and until the end of the last trial;
- the seconds from then on until MLflow has the plots of the experiment's report, too;
- the seconds from the POST to the start of the first trial;
- the same trials a second for a plain loop around Ray Tune (bench/plain_tune.py): `tune.Tuner` with
  a random space, a function trainable and MLflow's own callback;
- the milliseconds in which the API answers while trials train.

Rounds of ours and of the plain loop, which has fewer trials, take turns, while the service waits.
Times and rates are medians over rounds, those of reads over reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from bench.report import add_json, new_parser, write
from eigensweep.client import Client, Experiment
from eigensweep.command.quickstart import running_service

TASK: dict[str, Any] = {
    "name": "copying",
    "delay": 5,
    "symbols": 2,
    "batch_size": 4,
    "train_size": None,
    "valid_size": 16,
    "test_size": 16,
}
MODEL: dict[str, Any] = {"name": "tanh_rnn", "hidden_size": 8}
WAITING_SECONDS = 600.0
RUNS = "/mlflow/api/2.0/mlflow/runs"
"""MLflow's runs, through the service."""


def one_step(trials: int, offset: int) -> dict[str, Any]:
    """Return a spec of `trials` trials of one step; another `offset` gives other learning rates."""
    rates = [1e-3 * (1 + (i + 1000 * offset) / 1e6) for i in range(trials)]
    return {
        "name": f"bench-{offset}",
        "task": TASK,
        "model": MODEL,
        "search": {"method": "grid", "space": {"optimizer.lr": rates}},
        "training": {"steps": 1, "evaluate_every": 1, "log_every": 1},
    }


def long_one() -> dict[str, Any]:
    """Return a spec of long trials, which train until the experiment is cancelled."""
    return one_step(4, 99) | {
        "name": "bench-busy",
        "task": TASK | {"delay": 200, "valid_size": 50},
        "model": MODEL | {"hidden_size": 64},
        "training": {"steps": 50_000, "evaluate_every": 50},
        "scheduler": {"name": "none", "rung_every": 50},
    }


def seconds_between(earlier: str, later: str) -> float:
    """Return the seconds between two of the API's times."""
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)).total_seconds()


def trials_a_second(client: Client, trials: int, offset: int) -> dict[str, float]:
    """Return trials a second until the last run is closed, and until the last one is trained.

    Beside it stand the seconds from the POST to the start of the first trial, and those from the
    end of the last run until the plots have come.
    """
    experiment = client.submit(one_step(trials, offset)).wait(WAITING_SECONDS)
    run = experiment.content["links"]["run"].rsplit("/", 1)[-1].partition("?")[0]
    while client.get(f"{RUNS}/get", run_id=run)["run"]["info"]["status"] == "RUNNING":
        time.sleep(0.05)
    closed = time.time()
    while not experiment.refresh().content["delivered"]:
        time.sleep(0.05)
    delivered = time.time()
    check_runs(client, run, trials)
    listed = [experiment.trial(n)["attempts"][-1] for n in range(trials)]
    states = {t["state"] for t in experiment.listing()}
    if states != {"completed"}:
        raise RuntimeError(f"not every trial was completed: {states}")
    first = min(a["started_at"] for a in listed)
    last = max(a["ended_at"] for a in listed)
    return {
        "driver_start_seconds": seconds_between(experiment.content["created_at"], first),
        "trials_a_second": trials / (closed - datetime.fromisoformat(first).timestamp()),
        "plots_seconds": delivered - closed,
        "trained_a_second": trials / seconds_between(first, last),
    }


def check_runs(client: Client, parent: str, trials: int) -> None:
    """Raise unless MLflow has every trial's run, and each is closed with its result."""
    project = client.get(f"{RUNS}/get", run_id=parent)["run"]["info"]["experiment_id"]
    query = {
        "experiment_ids": [project],
        "filter": f"tags.`mlflow.parentRunId` = '{parent}'",
        "max_results": 1000,
    }
    found = client.post(f"{RUNS}/search", query).get("runs", [])
    whole = [
        run
        for run in found
        if run["info"]["status"] == "FINISHED"
        and any(metric["key"] == "objective" for metric in run["data"]["metrics"])
    ]
    if len(whole) != trials:
        raise RuntimeError(f"MLflow has {len(whole)} of {trials} trials with an end and a result")


def time_reads(client: Client, reads: int) -> dict[str, float]:
    """Return the median milliseconds of each kind of read while trials train."""
    busy = client.submit(long_one())
    while busy.refresh().content["progress"]["steps_done"] == 0:
        time.sleep(0.5)
    paths = {
        "experiments": "/v1/experiments",
        "one experiment": f"/v1/experiments/{busy.id}",
        "its trials": f"/v1/experiments/{busy.id}/trials",
        "one trial": f"/v1/experiments/{busy.id}/trials/0",
    }
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(reads):
        for name, path in paths.items():
            began = time.perf_counter()
            client.get(path)
            taken[name].append(1e3 * (time.perf_counter() - began))
        time.sleep(0.02)
    Experiment.cancel(busy)
    busy.wait(60)
    return {name: median(times) for name, times in taken.items()}


def plain_loop(trials: int, folder: Path) -> float:
    """Return trials a second of a plain loop around Ray Tune, in a process of its own."""
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "bench.plain_tune", str(trials), str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AIR_NEW_OUTPUT": "0"},
    )
    return float(json.loads(done.stdout.splitlines()[-1])["trials_a_second"])


def main() -> None:
    """Measure, print a table, and write the numbers as JSON."""
    parser = new_parser(__doc__)
    for option, default, words in (
        ("--trials", 300, "trials in each round"),
        ("--rounds", 3, "rounds"),
        ("--reads", 100, "reads of each kind"),
        ("--plain-trials", 12, "trials in each round of the plain loop; 0 leaves it out"),
    ):
        parser.add_argument(
            option, type=int, default=default, help=f"{words}; default: %(default)s"
        )
    add_json(parser, "overhead")
    given = parser.parse_args()
    screen = Console()
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        with running_service(home, screen) as client:
            rounds, plain = [], []
            for i in range(given.rounds):
                rounds.append(trials_a_second(client, given.trials, i))
                if given.plain_trials:
                    plain.append(plain_loop(given.plain_trials, Path(folder) / str(i)))
            reads = time_reads(client, given.reads)
    rate = median(r["trials_a_second"] for r in rounds)
    trained = median(r["trained_a_second"] for r in rounds)
    start = median(r["driver_start_seconds"] for r in rounds)
    plots = median(r["plots_seconds"] for r in rounds)
    screen.print(f"{given.trials} one-step trials until the last run is closed in MLflow:")
    screen.print(
        f"  {rate:.1f} a second (median of {[round(r['trials_a_second'], 1) for r in rounds]})"
    )
    screen.print(f"  and the plots come {plots:.1f} s later; until the last one is trained:")
    screen.print(f"  {trained:.1f} a second. From the POST to the first: {start:.1f} s")
    if plain:
        ratios = [r["trials_a_second"] / p for r, p in zip(rounds, plain, strict=True)]
        screen.print(
            f"{given.plain_trials} in a plain loop around Ray Tune with MLflow's callback:"
        )
        screen.print(f"  {median(plain):.2f} a second (of {[round(p, 2) for p in plain]});")
        screen.print(f"  ours is {median(ratios):.0f} times that (median)")
    for name, milliseconds in reads.items():
        screen.print(f"GET {name}, while trials train: {milliseconds:.1f} ms (median)")
    write({"rounds": rounds, "reads_ms": reads, "plain_trials_a_second": plain}, given.json)


if __name__ == "__main__":
    main()

"""Measure how long the service works on a page of a large experiment.

`python -m bench.pages` fills a record with one experiment of 10,000 trials (three arms, ten reports
each, curves of 2,000 points for the best ones), asks for each page and for the data of its plots
in this process, without a network, and prints the median milliseconds of the processor and the size
of each answer.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from sqlalchemy import insert, update
from starlette.testclient import TestClient

from bench.report import add_json, new_parser, write
from eigensweep.results.ranking import UNRANKED
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ParameterCount, ReplicateResult
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, ReportRow, TrialRow
from eigensweep.service.settings import Settings
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint

ARMS = ("one", "two", "three")
SEEDS = 3
REPORTS = 10
STORED = 40
"""Trials, among them the best of each arm, whose curves are in the store."""
POINTS = 2000
PIECE = 5000
"""Trials that are written at once."""


def make_spec(trials: int) -> dict[str, Any]:
    """Return a spec of a random search."""
    return {
        "name": "a large search",
        "task": {"name": "copying", "delay": 50},
        "arms": [{"name": name, "model": {"name": "lstm", "parameters": 6000}} for name in ARMS],
        "training": {"steps": 20_000, "evaluate_every": 200},
        "replicates": SEEDS,
        "search": {
            "method": "random",
            "trials": trials,
            "space": {
                "optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True},
                "optimizer.name": ["adam", "rmsprop"],
            },
        },
    }


def make_trials(id: str, config: dict[str, Any], trials: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of trials: nine of ten completed, the others failed or diverged."""
    chance = random.Random(0)
    for number in range(trials):
        value = chance.uniform(0.1, 0.4) + number / 1e6
        state = "completed" if number % 10 else ("failed", "diverged")[number // 10 % 2]
        seeds = [
            ReplicateResult(
                seed=seed,
                outcome="completed",
                value=value + seed / 1000,
                best_step=900,
                step=20_000,
                valid={"cross_entropy": value, "accuracy": 0.5, "recall_accuracy": 0.4},
                test={"cross_entropy": value, "accuracy": 0.5, "recall_accuracy": 0.4},
                seconds=20.0,
                parameters=ParameterCount(6000, 6000),
            )
            for seed in range(SEEDS)
        ]
        yield {
            "experiment_id": id,
            "number": number,
            "arm": ARMS[number % 3],
            "params": {"optimizer.lr": 10 ** chance.uniform(-5, -1), "optimizer.name": "adam"},
            "config": config,
            "config_hash": f"{number:016x}",
            "seed": 0,
            "replicates": SEEDS,
            "steps": 20_000,
            "step": 20_000,
            "state": state,
            "attempt": 1,
            "value": value,
            "rank": value if state == "completed" else UNRANKED,
            "result": summarise(seeds).to_dict(),
            "error": "Traceback\n" * 20 + "KeyError: 'x'" if state == "failed" else None,
            "started_at": 0.0,
            "ended_at": 1.0,
        }


def make_reports(id: str, trials: list[dict[str, Any]], reports: int) -> list[dict[str, Any]]:
    """Return the rows of the reports of some trials."""
    return [
        {
            "experiment_id": id,
            "number": trial["number"],
            "step": 2000 * (rung + 1),
            "attempt": 1,
            "metrics": {"valid/cross_entropy": 0.3, "objective": 0.3},
            "at": float(rung),
        }
        for trial in trials
        for rung in range(reports)
    ]


def fill(
    url: str, storage: Path, id: str, config: dict[str, Any], trials: int, reports: int = REPORTS
) -> None:
    """Write trials and reports into the record, and curves of the best into the store."""
    rows = list(make_trials(id, config, trials))

    def work(found: RowSession) -> None:
        for begin in range(0, trials, PIECE):
            piece = rows[begin : begin + PIECE]
            found.execute(insert(TrialRow), piece)
            found.execute(insert(ReportRow), make_reports(id, piece, reports))
        found.execute(update(ExperimentRow).values(state="running", claimed_at=time.time() - 99))

    database.write(url, work)
    store = Store(storage)
    ranked = sorted(rows, key=lambda row: float(row["rank"]))[:STORED]
    for row in ranked:
        for seed in range(SEEDS):
            key = replicate_key(id, row["number"], seed)
            store.begin(key, 1)
            curve = [
                CurvePoint(10 * step, {"valid/cross_entropy": 1 / (1 + step), "train/loss": 0.1}, 0)
                for step in range(POINTS)
            ]
            store.commit(key, 1, 20_000, {}, curve)


def measure(
    client: TestClient, id: str, number: int, reads: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return median milliseconds and kilobytes of each page and of the data of its plots."""
    here, data = f"/experiments/{id}", f"/v1/experiments/{id}"
    paths = {
        "list": "/",
        "experiment": here,
        "its arms": f"{data}/arms",
        "its curves": f"{data}/curves",
        "its points": f"{data}/points",
        "its importance": f"{data}/importance",
        "its front": f"{data}/pareto",
        "its trials": f"{here}/trials",
        "its failures": f"{here}/trials?state=failed",
        "one trial": f"{here}/trials/{number}",
        "its own curves": f"{data}/trials/{number}/curves",
        "form": "/new",
        "experiments as JSON": "/v1/experiments",
    }
    sizes = {}
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(reads + 1):
        for name, path in paths.items():
            began = time.process_time()
            answer = client.get(path)
            taken[name].append(1e3 * (time.process_time() - began))
            answer.raise_for_status()
            sizes[name] = len(answer.content) / 1000
    return {name: median(times[1:]) for name, times in taken.items()}, sizes


def main() -> None:
    """Fill, measure, print."""
    parser = new_parser(__doc__)
    for option, default, words in (
        ("--trials", 10_000, "trials"),
        ("--reads", 10, "reads of each"),
    ):
        parser.add_argument(
            option, type=int, default=default, help=f"{words}; default: %(default)s"
        )
    add_json(parser, "pages")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="eigensweep-bench-") as folder:
        settings = Settings(home=Path(folder), data_root=Path(folder))
        migrate(settings.database)
        record = Record(settings.database)
        with TestClient(create_app(settings, record, Dispatcher(record))) as client:
            spec = make_spec(given.trials)
            id = client.post("/v1/experiments", json=spec).json()["id"]
            shown = client.post("/v1/experiments/preview", json=spec).json()
            config = shown["first"][0]["config"]
            fill(settings.database, Path(settings.storage_folder), id, config, given.trials)
            best = client.get(f"/v1/experiments/{id}").json()["best"]["number"]
            found, sizes = measure(client, id, best, given.reads)
        database.engine(settings.database).dispose()
    screen = Console()
    screen.print(f"one experiment of {given.trials:,} trials; median of {given.reads} reads")
    for name, milliseconds in found.items():
        screen.print(f"{name}: {milliseconds:.0f} ms, {sizes[name]:.0f} kB")
    write({"trials": given.trials, "pages_ms": found, "pages_kb": sizes}, given.json)


if __name__ == "__main__":
    main()

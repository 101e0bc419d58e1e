"""Make the examples that the API's page shows, by playing experiments with a service in memory.

`python docs/generate.py` writes them to `service/api/examples.json`. Requests are written here;
each answer is what the service says. Clock and ids are set, so the same code gives the same file.
"""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from math import exp, inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.testclient import TestClient

from eigensweep.protocol.messages import Place
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import Outcome, ParameterCount, ReplicateResult
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.settings import Mlflow, Settings

NOON = 1_795_176_000.0
"""20 November 2026, 12:00 (UTC)."""
PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
"""That of these sources. What is installed may be older."""
PAGES = "http://127.0.0.1:8642/mlflow"
PLACE = Place(node="here", node_id="7f3c0a4be1d95268f0b7c6d2a91e8f43", pid=4711, device="cpu")

GRID: dict[str, Any] = {
    "name": "copying with scoRNN",
    "task": {"name": "copying", "delay": 100},
    "model": {"name": "scornn", "hidden_size": 64},
    "training": {"steps": 1000},
    "search": {
        "method": "grid",
        "space": {
            "optimizer.lr": [1e-2, 1e-3, 1e-4],
            "model.negative_fraction": [0.1, 0.5],
        },
    },
}
ARMS: dict[str, Any] = {
    "name": "who remembers",
    "task": {"name": "adding", "length": 200},
    "arms": [
        {"model": {"name": "lstm", "parameters": 15000}},
        {"model": {"name": "scornn", "parameters": 15000, "negative_fraction": 0.5}},
    ],
    "training": {"steps": 2000},
    "search": {
        "method": "tpe",
        "trials": 20,
        "space": {"optimizer.lr": {"low": 1e-5, "high": 1e-2, "log": True}},
    },
}
COMPARED: dict[str, Any] = {
    **ARMS,
    "replicates": 3,
    "search": {"method": "grid", "space": {"optimizer.lr": [3e-3, 1e-3, 3e-4]}},
}
MATRICES: dict[str, Any] = {
    "name": "fisher_memory",
    "options": {"alpha": [0.95, 1.0], "d": [0.0, 0.2]},
}
FIGURE = {"name": "nnrnn/figure-1c", "budget": "short"}


def make_examples() -> dict[str, dict[str, Any]]:
    """Return examples of requests, by path and name, and of answers, by the name of their model."""
    with _open_service() as (client, record, now):
        posted = client.post("/v1/experiments", json=GRID).json()
        id = _play_search(record, posted["id"], now)
        here = f"/v1/experiments/{id}"
        answers = {
            "PostedExperiment": posted,
            "ExperimentNow": client.get(here).json(),
            "ExperimentSummary": client.get("/v1/experiments").json()["items"][0],
            "TrialNow": client.get(f"{here}/trials/1").json(),
            "TrialSummary": client.get(f"{here}/trials?sort=value").json()["items"][0],
        }
        other = client.post("/v1/experiments", json=COMPARED).json()["id"]
        _play_comparison(record, other, now)
        of = [("of", f"{other}/{arm}") for arm in ("scornn", "lstm")]
        answers |= {
            "Comparison": client.get("/v1/compare", params=of).json(),
            "Effort": client.get("/v1/compare/effort", params=of).json(),
            "AnalysisNow": client.post("/v1/analyses", json=MATRICES).json(),
            "ReproductionNow": client.post("/v1/reproductions", json=FIGURE).json(),
        }
    specs = {
        "grid": {"summary": "A grid of six points", "value": GRID},
        "arms": {"summary": "Two models at equal size, by TPE", "value": ARMS},
    }
    heat_maps = {"name": "gradient_norms", "experiment": id, "trial": 3}
    requests = {
        "/v1/experiments": specs,
        "/v1/experiments/preview": specs,
        "/v1/experiments/{id}/extend": specs,
        "/v1/analyses": {
            "trial": {"summary": "Heat maps of a trained trial", "value": heat_maps},
            "matrices": {
                "summary": "Fisher memory of matrices, no trial needed",
                "value": MATRICES,
            },
        },
        "/v1/reproductions": {"short": {"summary": "A figure, cut to minutes", "value": FIGURE}},
    }
    return {"requests": requests, "answers": _round(answers)}


@contextmanager
def _open_service() -> Iterator[tuple[TestClient, Record, list[float]]]:
    """Yield a client, a record, and the time of day, which whoever plays sets."""
    now = [NOON]
    with (
        tempfile.TemporaryDirectory() as folder,
        patch("time.time", lambda: now[0]),
        patch("eigensweep.service.record.journal.usage.LEAP_SECONDS", inf),
        patch("secrets.choice", lambda signs: signs[-1]),
        patch("eigensweep.service.settings.version", lambda _: PROJECT["version"]),
    ):
        settings = Settings(home=Path(folder), data_root=Path(folder))
        migrate(settings.database)
        record = Record(settings.database)
        app = create_app(settings, record, Dispatcher(record), Mlflow(PAGES, PAGES))
        yield TestClient(app, base_url="http://127.0.0.1:8642"), record, now
        database.engine(settings.database).dispose()


def _claim(record: Record, id: str, now: list[float]) -> tuple[RecordLedger, ExperimentSpec]:
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    ledger.set_run("f7ee47fe2ca44c838c85a1e240a10f22", "1")
    now[0] += 5
    return ledger, ExperimentSpec.model_validate(record.row(id).spec)


def _open_trial(ledger: RecordLedger, spec: ExperimentSpec, number: int) -> int:
    """Begin the trial at a point of the grid; return its attempt."""
    point = spec.space().point(number)
    config = spec.trial(point)
    content = config.model_dump(mode="json")
    ledger.open(number, point.arm, dict(point.params), content, config.content_hash())
    ledger.set_delivered({number: f"c5e4e8bfbf7549c0b8b69d5d6ff5c26{number}"}, "1", [])
    return ledger.begin(number, PLACE)


def _play_search(record: Record, id: str, now: list[float]) -> str:
    """Play an experiment that goes on: three trials completed, one diverged, two train."""
    ledger, spec = _claim(record, id, now)
    for number, value in enumerate((0.0412, 0.0031, 0.0876)):
        attempt = _open_trial(ledger, spec, number)
        now[0] += 21
        ledger.report(number, attempt, 100, {"valid/cross_entropy": 0.17}, PLACE)
        now[0] += 20
        ledger.finish(number, attempt, "completed", summarise([_result(spec, 0, value)]))
    attempt = _open_trial(ledger, spec, 3)
    now[0] += 6
    ledger.finish(3, attempt, "diverged", summarise([_result(spec, 0, 3.2, "diverged", 200)]))
    for number in (4, 5):
        attempt = _open_trial(ledger, spec, number)
        ledger.report(number, attempt, 500, {"valid/cross_entropy": 0.09}, PLACE)
    return id


def _play_comparison(record: Record, id: str, now: list[float]) -> None:
    """Play an experiment that is over: two arms of three trials, with three seeds each."""
    ledger, spec = _claim(record, id, now)
    for number in range(6):
        attempt = _open_trial(ledger, spec, number)
        now[0] += 41
        value = (0.1 if number < 3 else 0.02) * exp(number % 3)
        seeds = [_result(spec, seed, value * (1 + seed / 50)) for seed in range(3)]
        ledger.finish(number, attempt, "completed", summarise(seeds))
    ledger.end("completed")


def _result(
    spec: ExperimentSpec,
    seed: int,
    value: float,
    outcome: Outcome = "completed",
    step: int | None = None,
) -> ReplicateResult:
    metric, last = spec.objective_metric.name, step or spec.training.steps
    return ReplicateResult(
        seed=seed,
        outcome=outcome,
        value=value,
        best_step=last - 100,
        step=last,
        valid={metric: value},
        test={} if outcome == "diverged" else {metric: value * 1.05},
        seconds=41.2 * last / spec.training.steps,
        parameters=ParameterCount(free=3273, stored=3273),
        baseline=spec.baseline,
    )


def _round(value: Any) -> Any:
    """Return JSON with numbers of six digits: the last ones differ among processors."""
    if isinstance(value, dict):
        return {key: _round(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_round(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value

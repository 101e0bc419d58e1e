"""An experiment whose driver a test has played: two arms, curves, and every kind of end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from eigensweep.protocol.messages import Place
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ParameterCount, ReplicateResult
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&"
"""A name or a message that would run, were it not escaped."""
PLACE = Place(node="here", pid=7, device="cpu")

SPEC: dict[str, Any] = {
    "name": f"who {HOSTILE}",
    "description": HOSTILE,
    "task": {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 4},
    "arms": [
        {"model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2}},
        {"name": "lstm", "model": {"name": "lstm", "hidden_size": 4}},
    ],
    "training": {"steps": 100, "evaluate_every": 10},
    "replicates": 2,
    "search": {"method": "grid", "space": {"optimizer.lr": [1e-4, 1e-3, 1e-2, 1e-1]}},
    "published": [
        {"arm": "scornn", "metric": "test/cross_entropy", "value": 0.25, "place": "table 1"},
        {"arm": "lstm", "metric": "parameters", "value": 22000, "note": HOSTILE},
        {"model": "uRNN", "metric": "test/cross_entropy", "value": 0.4},
    ],
}


def play(client: TestClient, record: Any, storage: Path, spec: dict[str, Any] = SPEC) -> Any:
    """Post an experiment and play its driver; return the ledger.

    Trials 0 and 1 of both arms complete, with two seeds each. Trial 4 failed, 5 diverged,
    6 is invalid, and 7 trains.
    """
    id = client.post("/v1/experiments", json=spec).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    for number in range(4):
        complete(ledger, storage, number, "scornn" if number < 2 else "lstm", 0.1 * (number + 1))
    open_trial(ledger, 4, "scornn", 1e-2)
    error = f"Traceback (most recent call last):\n  File x\nKeyError: {HOSTILE}"
    ledger.finish(4, ledger.begin(4), "failed", None, error)
    open_trial(ledger, 5, "lstm", 1e-1)
    ledger.finish(5, ledger.begin(5), "diverged", summarise([seed_result(0, 9.0, "diverged")]))
    words = "negative_ones is over hidden_size"
    ledger.open(6, "scornn", {"optimizer.lr": 1e-1}, {}, "", error=words)
    open_trial(ledger, 7, "lstm", 1e-3)
    attempt = ledger.begin(7)
    ledger.report(7, attempt, 50, {"valid/cross_entropy": 0.15, "objective": 0.15}, PLACE)
    return ledger


def open_trial(ledger: RecordLedger, number: int, arm: str, rate: float, seeds: int = 2) -> None:
    """Open a trial."""
    config = {
        "model": {"name": arm},
        "optimizer": {"name": HOSTILE, "lr": rate},
        "training": {"steps": 100},
        "seed": 0,
        "replicates": seeds,
    }
    ledger.open(number, arm, {"optimizer.lr": rate}, config, f"h{number}")


def complete(
    ledger: RecordLedger,
    storage: Path,
    number: int,
    arm: str,
    value: float,
    points: int = 11,
    free: int = 90,
    ends_at: float | None = None,
    apart: tuple[float, ...] = (0.0, 0.01),
) -> None:
    """Train a trial: a curve and a checkpoint for each of its seeds, and a result.

    `free` is how many parameters it trains, `ends_at` the last value of its curves, and `apart`
    what each of its seeds has above `value`.
    """
    open_trial(ledger, number, arm, 10.0 ** (-4 + number % 4), len(apart))
    attempt, store = ledger.begin(number), Store(storage)
    for seed, above in enumerate(apart):
        key = replicate_key(ledger.experiment_id, number, seed)
        store.begin(key, attempt)
        curve = [
            CurvePoint(step, {"valid/cross_entropy": value + 1 / (step + 1) + above}, 0)
            for step in range(0, 10 * points, 10)
        ]
        if ends_at is not None:
            curve[-1] = CurvePoint(curve[-1].step, {"valid/cross_entropy": ends_at}, 0)
        store.commit(key, attempt, 10 * (points - 1), {"x": 1}, curve)
    ledger.report(number, attempt, 100, {"valid/cross_entropy": value}, PLACE)
    seeds = [
        seed_result(seed, value + above, "completed", free) for seed, above in enumerate(apart)
    ]
    ledger.finish(number, attempt, "completed", summarise(seeds))


def seed_result(seed: int, value: float, outcome: Any, free: int = 90) -> ReplicateResult:
    """Return the result of one seed."""
    return ReplicateResult(
        seed=seed,
        outcome=outcome,
        value=value,
        best_step=90,
        step=100,
        valid={"cross_entropy": value},
        test={"cross_entropy": 2 * value},
        seconds=1.5,
        parameters=ParameterCount(free=free, stored=free + 9),
        baseline=0.46,
    )

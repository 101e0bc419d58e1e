"""A real driver with Ray's part played (`bench/played_ray.py`): what it keeps of trials."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench import scale
from bench.played_ray import Actor, played_ray
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.workers.driver import experiment as module
from eigensweep.workers.driver.experiment import ExperimentDriver
from eigensweep.workers.driver.tune.tune_loop import Controller

TRIALS, SLOTS = 24, 4


@pytest.fixture(autouse=True)
def _few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look twice: each look collects garbage, here also that of all other tests."""
    monkeypatch.setattr(scale, "LOOKS", 2)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what is noted of a driver: itself, and how many trials Tune held after each step."""
    noted: dict[str, Any] = {"held": []}
    begin, step = ExperimentDriver.__init__, Controller.step

    def begin_and_note(driver: ExperimentDriver, *arguments: Any) -> None:
        begin(driver, *arguments)
        noted["driver"] = driver

    def step_and_note(controller: Controller) -> None:
        step(controller)
        noted["held"].append(len(controller.get_trials()))

    monkeypatch.setattr(module.ExperimentDriver, "__init__", begin_and_note)
    monkeypatch.setattr(Controller, "step", step_and_note)
    return noted


def test_a_driver_keeps_little_of_trials_that_have_ended(tmp_path: Path, seen: dict[str, Any]):
    found = scale.drive(TRIALS, SLOTS, 0.0, "random", 2, tracks=False, folder=tmp_path)
    assert found["trials"] == TRIALS
    assert max(seen["held"]) <= 2 * SLOTS, "Tune holds trials that have ended"
    assert seen["held"][-1] == 0
    sweep = seen["driver"].sweep
    assert {entry.state for entry in sweep.entries.values()} == {"completed"}
    whole = [entry for entry in sweep.entries.values() if entry.config]
    assert whole == [sweep.entries.best()]
    ledger = seen["driver"].ledger
    assert isinstance(ledger, RecordLedger)
    recorded = ledger.load()
    assert len(recorded) == TRIALS
    assert all(entry.config and entry.result and len(entry.reports) == 2 for entry in recorded)
    values = [entry.result.value for entry in recorded if entry.result is not None]
    assert whole[0].result is not None
    assert whole[0].result.value == min(value for value in values if value is not None)
    assert len([*ledger.walk()]) == TRIALS
    assert seen["driver"].sweep.study.trials() == [], "a search at random has none in Optuna"


def test_very_short_trials_still_let_each_process_come_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    played: list[Any] = []

    @contextmanager
    def play(slots: int, seconds: float) -> Iterator[Any]:
        with played_ray(slots, seconds, start_seconds=0.5) as ray:
            played.append(ray)
            yield ray

    monkeypatch.setattr(scale, "played_ray", play)
    scale.drive(TRIALS, SLOTS, 0.1, "random", 1, tracks=False, folder=tmp_path)
    (ray,) = played
    assert ray.started <= SLOTS


def test_trials_that_wait_for_a_slot_begin_when_others_end(tmp_path: Path, seen: dict[str, Any]):
    scale.drive(TRIALS, SLOTS, 0.01, "qmc", 1, tracks=False, folder=tmp_path)
    assert max(seen["held"]) >= SLOTS


def test_a_reused_process_hears_of_its_trial_after_the_ledger(
    tmp_path: Path, seen: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    called: list[str] = []
    call = Actor.__getattr__

    def note(actor: Actor, name: str) -> Any:
        called.append(name)
        return call(actor, name)

    states: list[tuple[str, int]] = []
    take = Actor._train_next

    def look_and_take(actor: Actor, config: Any) -> Any:
        with sqlite3.connect(tmp_path / "record.db") as record:
            query = "SELECT state, attempt FROM trials WHERE number = ?"
            states.extend(record.execute(query, (config["number"],)))
        return take(actor, config)

    monkeypatch.setattr(Actor, "__getattr__", note)
    monkeypatch.setattr(Actor, "_train_next", look_and_take)
    scale.drive(TRIALS, SLOTS, 0.01, "random", 1, tracks=False, folder=tmp_path)
    assert states == [("running", 1)] * (TRIALS - SLOTS)
    assert called.count("train") == SLOTS
    assert "reset" not in called

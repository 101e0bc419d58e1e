"""A sweep writes the ledger before Optuna: a crash between the two writes loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from sweeps import Bench, spec

from eigensweep.results.trial_result import Result

LR = {"low": 1e-5, "high": 1e-1, "log": True}
SEARCHES: dict[str, dict[str, Any]] = {
    "grid": {"method": "grid", "space": {"optimizer.lr": [1e-1, 1e-2, 1e-3]}},
    "tpe": {"method": "tpe", "trials": 3, "space": {"optimizer.lr": LR}},
}


class DriverKilledError(Exception):
    """Stands for a kill at this very call."""


def kill_at(monkeypatch: pytest.MonkeyPatch, target: Any, *methods: str) -> None:
    """Make the named methods of `target` raise before they do anything."""

    def die(*_: Any, **__: Any) -> None:
        raise DriverKilledError

    for method in methods:
        monkeypatch.setattr(target, method, die)


def make_bench(folder: Path, method: str) -> Bench:
    return Bench(folder, spec(SEARCHES[method]))


@pytest.mark.parametrize("method", SEARCHES)
class TestBetweenLedgerAndOptuna:
    def test_a_new_trial_is_in_the_ledger_before_optuna_hears(self, tmp_path, monkeypatch, method):
        b = make_bench(tmp_path, method)
        kill_at(monkeypatch, b.study, "add")
        with pytest.raises(DriverKilledError):
            b.ask()
        (entry,) = b.ledger.load()
        assert entry.state == "waiting"
        b.start()
        assert b.ask().entry.params == entry.params
        assert len(b.ledger.load()) == 1

    def test_a_new_trial_that_the_ledger_did_not_take_is_unknown(
        self, tmp_path, monkeypatch, method
    ):
        b = make_bench(tmp_path, method)
        kill_at(monkeypatch, b.ledger, "open")
        with pytest.raises(DriverKilledError):
            b.ask()
        assert b.ledger.load() == []

    def test_an_end_stands_in_the_ledger_before_optuna_is_told(self, tmp_path, monkeypatch, method):
        b = make_bench(tmp_path, method)
        number = b.ask().entry.number
        b.sweep.begin(number, 1)
        kill_at(monkeypatch, b.study, "tell")
        with pytest.raises(DriverKilledError):
            b.sweep.end(number, "completed", Result(value=0.25, step=20))
        (entry,) = b.ledger.load()
        assert (entry.state, entry.result.value) == ("completed", 0.25)
        b.start()
        known = [(trial.state, trial.value) for trial in b.study.trials()]
        assert known == ([] if method == "grid" else [(TrialState.COMPLETE, 0.25)])

    def test_an_end_that_the_ledger_refused_is_not_told_to_optuna(
        self, tmp_path, monkeypatch, method
    ):
        b = make_bench(tmp_path, method)
        number = b.ask().entry.number
        b.sweep.begin(number, 1)
        kill_at(monkeypatch, b.ledger, "finish")
        with pytest.raises(DriverKilledError):
            b.sweep.end(number, "completed", Result(value=0.25, step=20))
        assert {trial.state for trial in b.study.trials()} <= {TrialState.RUNNING}
        monkeypatch.undo()
        b.start()
        assert (b.ask().entry.number, b.ask().entry.number) == (number, number + 1)


def test_whoever_watches_a_trial_is_told_after_the_ledger(tmp_path, monkeypatch):
    b = make_bench(tmp_path, "grid")
    seen = []
    b.sweep.watch = lambda entry: seen.append((entry.state, b.ledger.load()[0].state))
    b.ask()
    b.sweep.begin(0, 1)
    b.sweep.lose(0, 1, "killed")
    b.ask()
    b.sweep.begin(0, 2)
    b.sweep.end(0, "completed", Result(value=0.25, step=20))
    assert seen == [(state, state) for state in ("waiting", "running", "waiting")] + [
        ("running", "running"),
        ("completed", "completed"),
    ]

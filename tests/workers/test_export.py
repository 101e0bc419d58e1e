"""An experiment as a study of Optuna's: what its own tools find in the file."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sweeps import SCORNN, Bench, spec

from eigensweep.protocol.messages import Takeover
from eigensweep.results.trial_result import Result
from eigensweep.workers.driver.summary.export import export_study

LR = {"low": 1e-5, "high": 1e-1, "log": True}
RMSPROP = ["adam", "rmsprop"]
ARMS = (
    {"model": SCORNN, "space": {"optimizer.name": RMSPROP, "model.hidden_size": [8, 10]}},
    {"model": {"name": "lstm", "hidden_size": 8}, "space": {"model.hidden_size": [8, 16, 32]}},
)
ENDS = ("completed", "reused", "pruned", "diverged", "failed", "cancelled", "stalled")


def read(content: bytes, folder: Path) -> optuna.Study:
    """Return the one study of a file, as Optuna opens it."""
    (folder / "study.journal").write_bytes(content)
    backend = optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
    storage = optuna.storages.JournalStorage(backend)
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def export(bench: Bench, folder: Path, **times: Any) -> optuna.Study:
    entries = bench.ledger.load()
    return read(export_study("e1", bench.spec, entries, times.get("times", {})), folder)


def end(bench: Bench, outcome: Any, value: float | None = 0.5) -> None:
    job = bench.ask()
    number = job.entry.number
    bench.sweep.begin(number, 1)
    for step in (5, 10):
        bench.sweep.report(number, step, {"objective": 1 / step}, None)
    bench.sweep.end(number, outcome, Result(value=value, step=10), "Traceback\nKeyError: 'x'")


def test_each_outcome_is_what_optuna_calls_it(tmp_path):
    search = {"method": "random", "trials": 9, "space": {"optimizer.lr": LR}}
    bench = Bench(tmp_path, spec(search, name="a search", seed=3))
    for outcome in ENDS:
        end(bench, outcome, None if outcome == "diverged" else 0.5)
    bench.ask()
    study = export(bench, tmp_path, times={0: (100.0, 107.0)})
    assert study.study_name == "a search (e1)"
    assert study.metric_names == ["cross_entropy"]
    assert study.direction == StudyDirection.MINIMIZE
    complete, pruned, fail = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    expected = [complete, complete, pruned, pruned, fail, fail, fail, TrialState.WAITING]
    assert [trial.state for trial in study.trials] == expected
    assert [trial.value for trial in study.trials] == [0.5, 0.5, 0.1, 0.1, None, None, None, None]
    assert [trial.user_attrs["outcome"] for trial in study.trials] == [*ENDS, "waiting"]
    assert [trial.user_attrs["number"] for trial in study.trials] == list(range(8))
    first = study.trials[0]
    assert first.intermediate_values == {5: 0.2, 10: 0.1}
    assert first.params == bench.ledger.load()[0].params
    assert first.duration.total_seconds() == 7
    assert study.trials[4].user_attrs["error"] == "KeyError: 'x'"
    assert study.best_trial.number == 0


def test_a_reopened_trial_counts_with_its_result_so_far(tmp_path):
    bench = Bench(tmp_path, spec({"method": "random", "trials": 2, "space": {"optimizer.lr": LR}}))
    end(bench, "completed", 0.2)
    end(bench, "cancelled", None)
    more = {**bench.ledger.load()[0].config, "replicates": 9}
    entries = [entry.reopened(more, "seeds of a race") for entry in bench.ledger.load()]
    file = export_study("e1", bench.spec, entries, {0: (100.0, 107.0), 1: (100.0, None)})
    first, second = read(file, tmp_path).trials
    assert (first.state, first.value) == (TrialState.COMPLETE, 0.2)
    assert first.user_attrs["replicates"] == bench.ledger.load()[0].config["replicates"]
    assert first.user_attrs["reopened_for"] == "seeds of a race"
    assert second.state == TrialState.RUNNING


def test_a_trial_with_a_lineage_has_no_parameters(tmp_path):
    bench = Bench(tmp_path, spec({"method": "random", "trials": 1, "space": {"optimizer.lr": LR}}))
    end(bench, "completed")
    taken = Takeover(5, 3, {"optimizer.lr": 0.02}, "a hash")
    entries = [replace(bench.ledger.load()[0], lineage=(taken,))]
    trial = read(export_study("e1", bench.spec, entries, {}), tmp_path).trials[0]
    assert trial.params == {}
    assert trial.user_attrs["lineage"] == [taken.to_dict()]
    assert trial.value == 0.5


def test_intermediate_values_are_the_scores_not_the_best_so_far(tmp_path):
    bench = Bench(tmp_path, spec({"method": "random", "trials": 1, "space": {"optimizer.lr": LR}}))
    number = bench.ask().entry.number
    bench.sweep.begin(number, 1)
    for step, score in ((5, 0.2), (10, 0.3)):
        told = {"objective": 0.2, "valid/cross_entropy": score}
        bench.sweep.report(number, step, told, None)
    bench.sweep.end(number, "pruned", Result(value=0.2, step=10))
    trial = export(bench, tmp_path).trials[0]
    assert trial.intermediate_values == {5: 0.2, 10: 0.3}
    assert trial.value == 0.3


def test_a_change_of_the_clocks_changes_no_duration(tmp_path, monkeypatch):
    bench = Bench(tmp_path, spec({"method": "random", "trials": 1, "space": {"optimizer.lr": LR}}))
    end(bench, "completed")
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        began = datetime(2026, 11, 1, 5, 50, tzinfo=UTC).timestamp()  # ten minutes before
        trial = export(bench, tmp_path, times={0: (began, began + 1800)}).trials[0]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert trial.duration == timedelta(minutes=30)
    assert trial.datetime_start == datetime(2026, 11, 1, 1, 50)


def test_an_export_logs_nothing_in_the_form_of_optuna(tmp_path, caplog):
    bench = Bench(tmp_path, spec({"method": "random", "trials": 1, "space": {"optimizer.lr": LR}}))
    end(bench, "completed")
    optuna.logging.set_verbosity(optuna.logging.INFO)
    optuna.logging.get_logger("optuna").addHandler(caplog.handler)
    try:
        assert export_study("e1", bench.spec, bench.ledger.load(), {})
    finally:
        optuna.logging.get_logger("optuna").removeHandler(caplog.handler)
    assert caplog.records == []


def test_arms_are_attributes_and_unlike_parameters_are_named(tmp_path):
    search = {"method": "tpe", "trials": 12, "space": {"optimizer.lr": LR}}
    bench = Bench(tmp_path, spec(search, arms=ARMS, objective={"metric": "accuracy"}))
    bench.run(lambda params: math.inf if params["optimizer.lr"] > 1e-2 else 0.5)
    study = export(bench, tmp_path)
    assert study.direction == StudyDirection.MAXIMIZE
    for entry, trial in zip(bench.ledger.load(), study.trials, strict=True):
        assert trial.user_attrs["arm"] == entry.arm
        size = f"{entry.arm}:model.hidden_size"
        assert trial.params["optimizer.lr"] == entry.params["optimizer.lr"]
        assert trial.params[size] == entry.params["model.hidden_size"]
        assert ("optimizer.name" in trial.params) == (entry.arm == "scornn")


def test_several_objectives_have_their_names_and_directions(tmp_path):
    search = {"method": "random", "trials": 1, "space": {"optimizer.lr": LR}}
    goals = {"against": ["seconds", "accuracy"]}
    bench = Bench(tmp_path, spec(search, objective=goals))
    bench.run(lambda params: Result(value=0.5, seconds=3.0, valid={"accuracy": 0.25}, step=20))
    study = export(bench, tmp_path)
    assert study.metric_names == ["cross_entropy", "seconds", "accuracy"]
    minimize, maximize = StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE
    assert study.directions == [minimize, minimize, maximize]
    assert study.trials[0].values == [0.5, 3.0, 0.25]


def test_points_that_no_config_accepts_are_left_out(tmp_path):
    space = {"optimizer.clip_norm": [None, 1.0], "optimizer.clip_value": [None, 1.0]}
    bench = Bench(tmp_path, spec({"space": space}))
    bench.run()
    assert [t.user_attrs["number"] for t in export(bench, tmp_path).trials] == [0, 1, 2]

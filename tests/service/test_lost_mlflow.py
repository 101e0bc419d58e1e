"""An MLflow that has lost what it held: its database was emptied. All is delivered anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from file_ledger import FileLedger
from mlflow import MlflowClient
from waiting import wait_until

from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.store.checkpoints import Store
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.workers.tracking import tracker as tracking
from eigensweep.workers.tracking.subject import make_subject
from eigensweep.workers.tracking.tracker import Tracker

CONFIG: dict[str, Any] = {"seed": 7, "replicates": 1}
SPEC = {
    "name": "emptied",
    "task": {"name": "copying", "delay": 5},
    "model": {"name": "lstm", "hidden_size": 6},
    "search": {"space": {"optimizer.lr": [0.01, 0.001, 0.1]}},
    "training": {"steps": 20},
}


class Lab:
    """An experiment of two trials, and the MLflow of a service that is to hold them."""

    def __init__(self, server: MlflowServer, folder: Path, name: str) -> None:
        self.server, self.folder, self.name = server, folder, name
        self.ledger, self.store = FileLedger(folder / "ledger.json", name), Store(folder)
        self.begin()

    def begin(self) -> None:
        """Start the tracker of another driver, which is told what the ledger has."""
        spec = ExperimentSpec.model_validate(SPEC)
        subject = make_subject(self.name, spec, "lower", "anna")
        self.tracker = Tracker(self.server.url, subject, self.ledger, str(self.folder))
        for entry in self.ledger.load():
            self.tracker.see(entry)
        self.tracker.start()

    def train(self, number: int) -> None:
        key = f"{self.name}/{number:05}/7"
        self.ledger.open(number, "lstm", {"optimizer.lr": 0.1}, CONFIG, f"abc{number}")
        attempt = self.ledger.begin(number)
        self.store.begin(key, attempt)
        points = [CurvePoint(step, {"valid/loss": 1 / step}, 1000 + step) for step in (10, 20)]
        self.store.commit(key, attempt, 20, {}, points)
        self.ledger.finish(number, attempt, "completed", Result(value=0.05, step=20))
        self.tracker.see(self.ledger.load()[number])

    def wait_for(self, number: int) -> None:
        wait_until(lambda: self.ledger.load()[number].tracked)

    def end(self) -> None:
        self.tracker.close("completed", None, None)
        self.tracker.wait()

    def empty_mlflow(self) -> None:
        """Have MLflow hold nothing more of any run, as after `rm` and a start."""
        with closing(sqlite3.connect(self.server._folder / "mlflow.db")) as database:
            for table in ("metrics", "latest_metrics", "params", "tags", "runs"):
                database.execute(f"DELETE FROM {table}")
            database.commit()

    def held(self) -> dict[str, tuple[str, int]]:
        """Return what MLflow has: how each run stands, and the points of its curve."""
        client = MlflowClient(self.server.url)
        project = client.get_experiment_by_name("emptied") or client.get_experiment("0")
        found = {}
        for run in client.search_runs([project.experiment_id]):
            if run.data.tags["eigensweep.experiment"] == self.name:
                curve = client.get_metric_history(run.info.run_id, "valid/loss")
                number = run.data.tags.get("eigensweep.trial", "whole")
                found[number] = (run.info.status, len(curve))
        return found


@pytest.fixture
def start(
    mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], Lab]:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mlflow_server.token)
    monkeypatch.setattr(tracking, "PASS_SECONDS", 0.05)
    return lambda name: Lab(mlflow_server, tmp_path, name)


def overwrite(file: Path, content: bytes) -> None:
    """Write over a file in place, as a broken disk does."""
    with file.open("r+b") as opened:
        opened.write(content)


WHOLE = {"whole": ("FINISHED", 0), "0": ("FINISHED", 2), "1": ("FINISHED", 2)}


def test_while_a_driver_delivers_it_gets_all_again(start):
    lab = start("emptied1")
    lab.train(0)
    lab.wait_for(0)
    lab.empty_mlflow()
    lab.train(1)
    lab.wait_for(1)
    lab.end()
    assert lab.held() == WHOLE


def test_before_another_driver_begins_it_gets_all_again(start):
    lab = start("emptied2")
    lab.train(0)
    lab.wait_for(0)
    lab.tracker.abandon()
    lab.empty_mlflow()
    lab.begin()
    lab.train(1)
    lab.end()
    assert lab.held() == WHOLE


def test_while_its_database_is_damaged_what_is_sent_waits(start, caplog):
    lab = start("damaged")
    lab.train(0)
    lab.wait_for(0)
    place = lab.server._folder / "mlflow.db"
    whole = place.read_bytes()
    overwrite(place, b"\xa5" * len(whole))
    try:
        lab.train(1)
        wait_until(lambda: "not tracked yet" in caplog.text)
        assert (lab.ledger.load()[1].tracked, lab.tracker.find_refusal()) == (False, None)
    finally:
        overwrite(place, whole)
    lab.end()
    assert lab.held() == WHOLE


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "held"])
def test_delivered_again_each_point_is_there_once(start, is_lost):
    lab = start("again_lost" if is_lost else "again_held")
    for number in (0, 1):
        lab.train(number)
    lab.end()
    if is_lost:
        lab.empty_mlflow()
    lab.ledger.forget_delivery()
    lab.begin()
    lab.end()
    assert lab.held() == WHOLE


def test_where_checkpoints_were_pruned_curves_are_delivered(start):
    lab = start("emptied3")
    lab.train(0)
    lab.wait_for(0)
    lab.tracker.abandon()
    assert thin_out(lab.store, "emptied3/00000", "none", 1) > 0
    lab.empty_mlflow()
    lab.begin()
    lab.train(1)
    lab.end()
    assert lab.held() == WHOLE

"""Experiments that are put away, and those that are removed for good, half-way deaths included."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.open_jobs import has_open
from markupsafe import escape
from mlflow import MlflowClient
from sqlalchemy import event
from starlette.testclient import TestClient

from eigensweep.client.answers.answers import format_experiment
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue import deletions
from eigensweep.service.queue.deletions import DeletionHandler
from eigensweep.service.queue.jobs import JobRunner
from eigensweep.service.record.changes import control as removing
from eigensweep.service.record.errors import ConflictError, ExperimentNotFoundError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import AttemptRow, EventRow, ReportRow, TrialRow
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.workers.driver.deletion import remove
from eigensweep.workers.tracking.mlflow_runs import AwayError, Runs

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


def play(record: Record, content: dict[str, Any]) -> RecordLedger:
    """Post an experiment, and play its driver to the end of one trial and of all."""
    id = record.add(ExperimentSpec.model_validate(content))[0].id
    claim = record.claim(id)
    assert claim is not None
    ledger = RecordLedger(record.url, id, claim.generation)
    ledger.open(0, "scornn", {}, CONFIG, "h")
    attempt = ledger.begin(0)
    ledger.report(0, attempt, 50, {"loss": 0.5}, None)
    ledger.finish(0, attempt, "completed", Result(value=0.5, step=100))
    ledger.end("completed")
    return ledger


@pytest.fixture
def ledger(record: Record, spec: Any) -> RecordLedger:
    return play(record, spec())


class TestArchive:
    def test_lists_leave_it_out_unless_they_are_asked(self, client, ledger):
        id = ledger.experiment_id
        answer = client.post(f"/v1/experiments/{id}/archive").json()
        assert answer["archived_at"] is not None
        assert client.get("/v1/experiments").json()["items"] == []
        (found,) = client.get("/v1/experiments?archived=true").json()["items"]
        assert found["id"] == id
        assert client.get(f"/v1/experiments/{id}").json()["state"] == "completed"
        assert id not in client.get("/").text
        assert id in client.get("/?archived=true").text

    def test_it_comes_back(self, client, record, ledger):
        path = f"/v1/experiments/{ledger.experiment_id}"
        for action in ("archive", "archive", "unarchive", "unarchive"):
            assert client.post(f"{path}/{action}").status_code == 202
        assert len(client.get("/v1/experiments").json()["items"]) == 1
        kinds = [event.kind for event in record.events(ledger.experiment_id)]
        assert kinds[-2:] == ["experiment.archived", "experiment.unarchived"]

    def test_what_is_taken_up_again_is_in_lists_again(self, client, record, spec, ledger):
        record.archive(ledger.experiment_id)
        more = ExperimentSpec.model_validate(spec(limits={"wall_seconds": 1000}))
        record.extend(ledger.experiment_id, more)
        assert len(client.get("/v1/experiments").json()["items"]) == 1


class TestDeliver:
    def test_the_next_driver_delivers_all_of_it_again(self, client, record, ledger):
        ledger.set_delivered({}, "0", [0])
        ledger.set_tracked()
        assert record.claim(ledger.experiment_id) is None
        for _ in range(2):  # the second changes nothing
            answer = client.post(f"/v1/experiments/{ledger.experiment_id}/deliver").json()
        assert (answer["state"], answer["delivered"]) == ("completed", False)
        assert [entry.tracked for entry in ledger.walk()] == [False]
        kinds = [event.kind for event in record.events(ledger.experiment_id)]
        assert kinds.count("experiment.delivery_requested") == 1
        assert record.claim(ledger.experiment_id) is not None

    def test_one_that_never_began_stays_unknown_to_mlflow(self, client, record, spec):
        id = record.add(ExperimentSpec.model_validate(spec()))[0].id
        record.cancel(id)
        assert client.post(f"/v1/experiments/{id}/deliver").json()["delivered"]
        assert record.claim(id) is None


class TestWarmStart:
    @pytest.fixture
    def search(self, ledger: RecordLedger) -> dict[str, Any]:
        space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
        sources = ["0another", ledger.experiment_id]
        return {"method": "tpe", "trials": 2, "space": space, "warm_start": sources}

    def test_a_source_stays_until_the_searches_are_over(self, client, record, spec, search, ledger):
        content = ExperimentSpec.model_validate(spec(search=search))
        paused, running = (record.add(content)[0].id for _ in range(2))
        record.pause(paused)
        record.claim(running)
        other, source = play(record, spec()).experiment_id, ledger.experiment_id
        asked = {"action": "delete", "ids": [source, other], "confirm": True}
        refused, done = client.post("/v1/experiments/bulk", json=asked).json()["items"]
        assert (refused["state"], done["state"]) == ("completed", "deleting")
        assert f"the search of {paused}, {running} starts from" in refused["problem"]
        path = f"/v1/experiments/{source}/delete"
        for id in (running, paused):
            assert client.post(path, json={"confirm": True}).status_code == 409
            record.cancel(id)
        assert client.post(path, json={"confirm": True}).status_code == 202

    def test_each_database_finds_them(self, each_url, spec, search):
        record = Record(each_url)
        source = play(record, spec()).experiment_id
        search = {**search, "warm_start": ["0another", source]}
        record.add(ExperimentSpec.model_validate(spec(search=search)))
        with pytest.raises(ConflictError, match="wait for its end, or cancel it first"):
            record.delete(source)


class Deleter:
    """What removes experiments."""

    def __init__(self, removal: Removal) -> None:
        self.handler = DeletionHandler(
            removal.record,
            lambda id: removal.driver,
            removal.folder / "deletions",
            StoreProbe(str(removal.folder / "storage")),
        )
        jobs = Jobs(removal.record.url)
        self.runner = JobRunner(jobs, [self.handler], clock=lambda: removal.now)

    def tick(self) -> bool:
        """Try each removal that is due; return whether any is left."""
        self.runner.tick(self.handler)
        return has_open(self.runner.jobs, self.handler.kind)


class Removal:
    """Two experiments with files, of which one is deleted, and the parts that do that."""

    def __init__(self, record: Record, content: dict[str, Any], folder: Path) -> None:
        self.record, self.folder = record, folder
        self.ledger, self.other = play(record, content), play(record, content)
        for each in (self.ledger, self.other):
            (folder / "storage" / each.experiment_id / "00000").mkdir(parents=True)
        self.driver: Any = None
        self.id = self.ledger.experiment_id
        self.now = time.time() + 1
        self.deleter = self.start()

    def start(self) -> Deleter:
        """Return what a service that is started now has."""
        return Deleter(self)

    def files(self) -> set[str]:
        """Return what is left, as names of experiments."""
        return {place.name for place in (self.folder / "storage").iterdir()}


@pytest.fixture
def removal(record: Record, spec: Any, tmp_path: Path) -> Removal:
    return Removal(record, spec(), tmp_path)


@pytest.fixture
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what a deleter's child process does be done here, which starts sooner."""

    def remove_files(deleter: DeletionHandler, id: str) -> None:
        project = deleter.record.row(id).project
        remove(id, project, deleter.probe.place, mlflow_uri=None)

    monkeypatch.setattr(DeletionHandler, "_remove_files", remove_files)


def count_rows(record: Record, id: str) -> int:
    def work(session: Any) -> int:
        tables: Any = (TrialRow, AttemptRow, ReportRow, EventRow)
        return sum(session.query(t).filter(t.experiment_id == id).count() for t in tables)

    return database.read(record.url, work)


def test_the_rows_of_a_large_experiment_go_in_pieces(record, spec, monkeypatch):
    monkeypatch.setattr(removing, "AT_ONCE", 2)
    ledger, other = (play(record, spec()) for _ in range(2))
    id = ledger.experiment_id
    for number in range(1, 6):
        row = TrialRow(experiment_id=id, number=number, arm="scornn", params={}, state="completed")
        database.write(record.url, lambda session, row=row: session.add(row))
    commits: list[Any] = []
    kept = count_rows(record, other.experiment_id)
    record.remove(id)
    assert count_rows(record, id) > 5  # nobody has asked for it
    record.delete(id)
    event.listen(database.engine(record.url), "commit", commits.append)
    record.remove(id)
    assert len(commits) > 3
    assert count_rows(record, id) == 0
    assert count_rows(record, other.experiment_id) == kept
    with pytest.raises(ExperimentNotFoundError):
        record.row(id)


class TestDelete:
    def test_it_is_asked_for_explicitly(self, client: TestClient, record, ledger):
        path = f"/v1/experiments/{ledger.experiment_id}/delete"
        for body in ({}, {"confirm": False}):
            assert client.post(path, json=body).status_code == 422
        bulk = {"action": "delete", "ids": [ledger.experiment_id]}
        refused = client.post("/v1/experiments/bulk", json=bulk)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["path"] == "confirm"
        assert "say 'confirm': true" in refused.text
        assert record.row(ledger.experiment_id).state == "completed"
        done = client.post("/v1/experiments/bulk", json={**bulk, "confirm": True}).json()
        (item,) = done["items"]
        assert (item["state"], item["problem"]) == ("deleting", None)

    def test_runs_checkpoints_and_rows_are_gone_and_no_others(self, client, removal):
        removal.record.delete(removal.id)
        assert client.get(f"/v1/experiments/{removal.id}").json()["state"] == "deleting"
        assert not removal.deleter.tick()
        assert removal.files() == {removal.other.experiment_id}
        assert client.get(f"/v1/experiments/{removal.id}").status_code == 404
        assert count_rows(removal.record, removal.id) == 0
        assert count_rows(removal.record, removal.other.experiment_id) > 0
        assert list((removal.folder / "deletions").iterdir()) == []

    @pytest.mark.usefixtures("_in_this_process")
    def test_a_driver_that_delivers_is_shut_out_and_waited_for(self, client, removal):
        class Driver:
            now: Any = "running"

            def state(self) -> Any:
                return self.now

        removal.driver = Driver()
        removal.record.delete(removal.id)
        with pytest.raises(StaleWriteError):
            removal.ledger.set_tracked()
        assert removal.record.list_unfinished() == [
            each for each in removal.record.list_unfinished() if each.id != removal.id
        ]
        assert removal.deleter.tick()
        assert removal.id in removal.files()
        notices = client.get(f"/v1/experiments/{removal.id}").json()["notices"]
        assert [each["words"] for each in notices] == [
            "not deleted yet: its driver has not ended yet"
        ]
        removal.driver.now = "died"
        removal.now += 10.0
        assert not removal.deleter.tick()
        assert removal.id not in removal.files()

    @pytest.mark.usefixtures("_in_this_process")
    def test_a_service_that_dies_half_way_has_the_next_one_go_on(self, removal, monkeypatch):
        removal.record.delete(removal.id)

        def die(id: str) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(removal.record, "remove", die)
            with pytest.raises(KeyboardInterrupt):
                removal.deleter.tick()
        assert removal.id not in removal.files()
        assert removal.record.row(removal.id).state == "deleting"
        assert not removal.start().tick()
        with pytest.raises(ExperimentNotFoundError):
            removal.record.row(removal.id)

    @pytest.mark.usefixtures("_in_this_process")
    def test_it_waits_for_a_store_that_is_not_mounted(self, client, removal):
        storage, mounted = removal.folder / "storage", removal.folder / "mounted"
        removal.record.delete(removal.id)
        storage.rename(mounted)
        storage.mkdir()
        assert removal.deleter.tick()
        shown = client.get(f"/v1/experiments/{removal.id}").json()
        (notice,), state = shown["notices"], shown["state"]
        assert (notice["kind"], state) == ("deletion", "deleting")
        assert notice["words"].startswith("not deleted yet: ")
        assert "storage is empty, and the record has trials that have trained" in notice["words"]
        assert str(escape(notice["words"])) in client.get(f"/experiments/{removal.id}").text
        assert "not deleted yet: " in format_experiment(shown, "http://here")
        storage.rmdir()
        mounted.rename(storage)
        removal.now += 10.0
        assert not removal.deleter.tick()
        assert removal.files() == {removal.other.experiment_id}
        removal.record.delete(removal.other.experiment_id)
        shutil.rmtree(storage / removal.other.experiment_id)  # a service died half-way
        assert not removal.deleter.tick()

    def test_a_store_that_cannot_be_read_is_told_and_holds_up_none(self, removal, monkeypatch):
        def read(record: Record, store: Any) -> None:
            raise StoreAwayError("the bucket does not answer")

        monkeypatch.setattr(deletions, "require_commits", read)
        removal.record.hold_delivery(removal.id, "others are delivered first")
        both = [removal.id, removal.other.experiment_id]
        for id in both:
            removal.record.delete(id)
            assert removal.record.row(id).notices is None
        assert removal.deleter.tick()
        told = [removal.record.row(id).notices for id in both]
        words = "not deleted yet: the bucket does not answer"
        assert [[each["words"] for each in notices] for notices in told] == [[words]] * 2

    def test_what_cannot_be_removed_now_is_tried_again_later(self, removal, monkeypatch):
        removal.record.delete(removal.id)
        problems = ["MLflow is away", None]
        monkeypatch.setattr(removal.deleter.handler, "_remove_files", lambda id: problems.pop(0))
        assert removal.deleter.tick()
        assert removal.deleter.tick()  # its pause is not over
        assert problems == [None]
        removal.now += 10.0
        assert not removal.deleter.tick()

    def test_the_form_of_the_page_asks_first(self, client, ledger):
        page = client.get(f"/experiments/{ledger.experiment_id}").text
        button = page.partition(f"/v1/experiments/{ledger.experiment_id}/delete")[2]
        head = button.partition(">")[0]
        assert "data-ask=" in head
        assert "confirm" in head


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own store
def test_runs_are_found_in_a_project_that_was_renamed(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = Runs(uri, "memory", "e1")
    own = runs.get(None, None, "all", {})
    trial = runs.get(0, None, "a trial", {}, own)
    client = MlflowClient(uri)
    client.rename_experiment(runs.project_id, "long memory")
    later = Runs(uri, "memory", "e1", own)
    assert later.get(0, None, "a trial", {}, own) == trial
    assert later.project_id == runs.project_id
    assert not later.lacked_experiment
    assert client.get_experiment_by_name("memory") is None
    client.delete_experiment(runs.project_id)
    assert Runs(uri, "memory", "e1", own).get(None, None, "all", {}) == own
    assert client.get_experiment(runs.project_id).lifecycle_stage == "active"
    remove("e1", "memory", str(tmp_path), uri, own)
    assert client.search_runs([runs.project_id]) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # MLflow's own store
def test_every_run_of_it_is_deleted_in_mlflow_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    runs = {id: Runs(uri, "some project", id) for id in ("e1", "e2")}
    for each in runs.values():
        parent = each.get(None, None, "all", {})
        each.get(0, None, "a trial", {}, parent)
        each.end(parent, "FINISHED")
    for _ in range(2):  # whoever died in the middle does it once more
        remove("e1", "some project", str(tmp_path), uri)
    client = MlflowClient(uri)
    projects = [each.experiment_id for each in client.search_experiments()]
    left = client.search_runs(projects)
    assert [run.data.tags["eigensweep.experiment"] for run in left] == ["e2", "e2"]
    asked: list[str] = []

    def keep(self: MlflowClient, run_id: str) -> None:
        asked.append(run_id)
        assert len(asked) < 5, "it goes on for ever"

    monkeypatch.setattr(MlflowClient, "delete_run", keep)
    with pytest.raises(AwayError, match="lists it still"):
        remove("e2", "some project", str(tmp_path), uri)
    assert sorted(asked) == sorted(run.info.run_id for run in left)
    remove("e3", "no such project", str(tmp_path), uri, "no such run")
    assert client.get_experiment_by_name("no such project") is None

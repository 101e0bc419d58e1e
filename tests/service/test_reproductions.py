"""Reproductions over the API, with drivers that a test plays."""

from __future__ import annotations

import copy
import io
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from helpers.reproduced import (
    NAME,
    Reproducer,
    leave_undrawn,
    play_driver,
)
from rich.console import Console
from sqlalchemy import update
from starlette.testclient import TestClient

from eigensweep.client import RefusedError, ServiceAwayError, connection
from eigensweep.client.reproductions import Reproduction
from eigensweep.command.reproduce import follow, save_results, service_of_our_own, show_end
from eigensweep.protocol.messages import DriverOptions
from eigensweep.reports.__main__ import main as make_report
from eigensweep.reports.messages import ReportOutcome
from eigensweep.reports.report import make_report as make_content
from eigensweep.reports.results import (
    UNFINISHED,
    name_file,
    read_folder,
    read_results,
    write_results,
)
from eigensweep.search_spaces.shipped.reproductions import suite_names
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.errors import QuotaExceededError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests import reproductions as requested
from eigensweep.service.record.requests.reproductions import Posted, Wanted
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.service.record.users.accounts import Accounts, Quotas
from eigensweep.service.settings import Settings
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.places.durable_files import StoreAwayError


@pytest.fixture
def drawn() -> None:
    """Who looks at a picture asks for this."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        leave_undrawn(monkeypatch)


@pytest.fixture
def reproducer(client: TestClient) -> Reproducer:
    """What takes reproductions further; its reports are made in this process."""
    return Reproducer(client.app)


@pytest.fixture
def play(record: Record, settings: Settings) -> Callable[..., None]:
    """Return a function that plays the driver of an experiment to its end."""
    return partial(play_driver, record, settings.storage_folder)


def post(client: TestClient, name: str = NAME, **more: Any) -> Any:
    return client.post("/v1/reproductions", json={"name": name, **more})


def extend(record, id):
    """Have an experiment that is over train three times its steps."""
    spec = ExperimentSpec.from_stored(record.row(id).spec)
    training = spec.training.model_copy(update={"steps": 3 * spec.training.steps})
    record.extend(id, spec.model_copy(update={"training": training}))
    return spec


def test_one_whose_experiment_was_extended_says_so(client, record, reproducer, play):
    posted = post(client).json()
    (experiment,) = posted["experiments"]
    play(experiment["id"])
    extend(record, experiment["id"])
    play(experiment["id"])
    assert not reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["state"] == "failed"
    assert f"({experiment['id']}) was extended since; ask for it again" in ended["error"]
    (again,) = post(client).json()["experiments"]
    assert again["id"] != experiment["id"]


def test_an_experiment_that_was_extended_is_the_suites_no_more(client, record, play):
    posted = post(client).json()
    (experiment,) = posted["experiments"]
    play(experiment["id"])
    spec = extend(record, experiment["id"])
    reproductions = client.app.state.service.reproductions
    reproductions.change(reproductions.get(posted["id"]), state="failed")
    (again,) = post(client).json()["experiments"]
    assert again["id"] != experiment["id"]
    assert record.row(again["id"]).spec["training"]["steps"] == spec.training.steps


@pytest.mark.usefixtures("drawn")
def test_it_ends_in_a_report_and_is_not_run_again(client, reproducer, play):
    answer = post(client)
    assert answer.status_code == 201, answer.text
    posted = answer.json()
    (experiment,) = posted["experiments"]
    assert posted["state"] == "running"
    assert posted["links"]["report"] == {}
    assert reproducer.tick()
    assert client.get(f"{posted['links']['self']}/report.json").status_code == 404
    again = post(client)
    assert again.status_code == 200
    assert again.json()["experiments"] == posted["experiments"]

    play(experiment["id"])
    assert not reproducer.tick()
    ended = client.get(answer.headers["Location"]).json()
    assert ended["state"] == "finished", ended["error"]
    assert ended["fraction"] == 1
    report = client.get(ended["links"]["report"]["json"]).json()
    assert report["verdict"] == ended["verdict"]
    assert [claim["comparisons"][0]["than"] for claim in report["claims"]] == ["128"]
    assert report["claims"][0]["verdict"] == "not distinguishable"  # both are there at once
    for format, kind in (("html", "text/html"), ("md", "text/markdown"), ("svg", "image/svg+xml")):
        fetched = client.get(ended["links"]["report"][format])
        assert fetched.status_code == 200
        assert fetched.headers["content-type"].startswith(kind)
    assert post(client).status_code == 200
    assert len(client.get("/v1/experiments").json()["items"]) == 1


def test_a_report_waits_for_the_store_and_misses_no_curve(client, reproducer, play, monkeypatch):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])

    def read(*_: Any, **__: Any) -> None:
        raise StoreAwayError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "points", read)
        assert reproducer.tick(), "it is still open"
    waits = client.get(posted["links"]["self"]).json()
    assert (waits["state"], waits["error"]) == ("reporting", "the store does not answer")
    reproducer.runner.clock = lambda: time.time() + 3600
    assert not reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert (ended["state"], ended["error"]) == ("finished", None)
    results = read_results(client.get(ended["links"]["report"]["results"]).content)
    assert all(trial.curves for each in results.experiments for trial in each.trials)


def test_a_step_forward_forgets_the_tries_before_it(client, reproducer, play, monkeypatch):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])
    jobs = reproducer.runner.jobs
    (job,) = jobs.list("reproduction")
    for _ in range(reproducer.reports.most_tries - 1):
        jobs.put_off(job, "the store does not answer", 0.0)

    def read(*_: Any, **__: Any) -> None:
        raise StoreAwayError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "points", read)
        reproducer.tick()
    (job,) = jobs.list("reproduction")
    assert (job.state, job.tries) == ("reporting", 1)


def test_a_report_by_earlier_rules_is_remade_untrained(client, reproducer, play, monkeypatch):
    from eigensweep.service.record.requests import reproductions

    posted = post(client).json()
    for experiment in posted["experiments"]:
        play(experiment["id"])
    reproducer.tick()
    monkeypatch.setattr(reproductions, "VERSION", reproductions.VERSION + 1)
    again = post(client)
    assert again.status_code == 201
    assert again.json()["experiments"] == client.get(posted["links"]["self"]).json()["experiments"]


@contextmanager
def serve_elsewhere(folder: Path, empty_record: Path, results: Path) -> Iterator[TestClient]:
    """Lend the service of another machine, whose home is empty, with a folder of results."""
    home = folder / "other"
    home.mkdir()
    shutil.copyfile(empty_record, home / "record.db")
    url = f"sqlite:///{home / 'record.db'}"
    record, settings = Record(url), Settings(home=home, results=results)
    queue = Dispatcher(record, launcher=None, options=DriverOptions(storage="/s"), problem=None)
    with TestClient(create_app(settings, record, queue), base_url="http://localhost:8642") as other:
        yield other
    database.engine(url).dispose()


class TestResults:
    """Results that one machine keeps and another takes up."""

    @pytest.fixture
    def kept(self, client, reproducer, play, tmp_path):
        """The folder of a machine that has measured a suite, with its results."""
        posted = post(client).json()
        play(posted["experiments"][0]["id"])
        reproducer.tick()
        ended = client.get(posted["links"]["self"]).json()
        folder = tmp_path / "results"
        folder.mkdir()
        answer = client.get(ended["links"]["report"]["results"])
        assert answer.headers["content-type"].startswith("application/json")
        (folder / name_file(NAME, "short")).write_bytes(answer.content)
        return folder

    @pytest.fixture
    def elsewhere(self, kept, tmp_path, empty_record):
        """The service of another machine, whose home is empty, over the same folder."""
        with serve_elsewhere(tmp_path, empty_record, kept) as other:
            yield other

    def test_a_report_can_be_made_of_them_alone(self, client, kept):
        (found,) = client.get("/v1/reproductions").json()["items"]
        report = client.get(found["links"]["report"]["json"]).json()
        results = read_results((kept / name_file(NAME, "short")).read_bytes())
        assert write_results(results) == (kept / name_file(NAME, "short")).read_bytes()
        assert make_content(results, found["id"]).model_dump(mode="json") == report

    def test_another_machine_finds_their_trials_in_its_ledger(self, elsewhere, kept):
        posted = post(elsewhere).json()
        results = read_results((kept / name_file(NAME, "short")).read_bytes())
        record = elsewhere.app.state.service.record
        ledger = RecordLedger(record.url, posted["experiments"][0]["id"], 1)
        store = Store(elsewhere.app.state.service.settings.storage_folder)
        for trial in results.experiments[0].trials:
            config = trial.config
            budget = config["training"]["steps"]
            seeds = config["replicates"]
            found = ledger.find_finished(trial.config_hash, config["seed"], seeds, budget)
            assert found.result.value == pytest.approx(trial.result["value"])
            assert {each.origin for each in found.result.by_replicate} == {results.origin}
            key = replicate_key(found.source.experiment, found.source.number, config["seed"])
            assert [point.step for point in store.points(key)] == [0, budget]
            assert not store.has_checkpoint(key)
            more = ledger.find_part(trial.config_hash, config["seed"], budget)
            assert more.result.replicates == seeds
            assert (
                ledger.find_finished(trial.config_hash, config["seed"], seeds + 1, budget) is None
            )
        (source,) = {found.source.experiment}
        shown = elsewhere.get(f"/v1/experiments/{source}").json()
        assert shown["state"] == "completed"
        assert results.origin in shown["spec"]["description"]
        assert shown["kept"] == "none", "so that a longer budget is refused"

    def test_analyses_of_weights_are_those_of_the_other_machine(
        self, client, reproducer, elsewhere, kept
    ):
        posted = post(client, "nnrnn/figure-1c").json()
        while reproducer.tick():
            reproducer.make_analyses()
        ended = client.get(posted["links"]["self"]).json()
        content = client.get(ended["links"]["report"]["results"]).content
        (kept / name_file("nnrnn/figure-1c", "short")).write_bytes(content)
        other = Reproducer(elsewhere.app)
        id = post(elsewhere, "nnrnn/figure-1c").json()["id"]
        found = other.reproductions.get(id)
        asked = Wanted("memory", 0, None, "the store has no weights")
        other.reproductions.change(found, analyses=(asked,), state="reporting")
        other.tick()
        ended = elsewhere.get(f"/v1/reproductions/{id}").json()
        assert (ended["state"], ended["verdict"]) == ("finished", "holds"), ended["error"]

    def test_analyses_of_other_trainings_are_not_taken_up(self, client, reproducer, kept):
        (found,) = client.app.state.service.reproductions.list()
        results = read_results((kept / name_file(NAME, "short")).read_bytes())
        assert reproducer.reports._has_same_results(found, results)
        (experiment,) = results.experiments
        first = experiment.trials[0].model_copy(update={"config_hash": "of another version"})
        other = experiment.model_copy(update={"trials": (first, *experiment.trials[1:])})
        others = results.model_copy(update={"experiments": [other]})
        assert not reproducer.reports._has_same_results(found, others)
        first = experiment.trials[0]
        elsewhere = first.model_copy(update={"result": first.result | {"value": 0.123}})
        other = experiment.model_copy(update={"trials": (elsewhere, *experiment.trials[1:])})
        others = results.model_copy(update={"experiments": [other]})
        assert not reproducer.reports._has_same_results(found, others), (
            "another machine trained them"
        )

    def test_they_are_taken_up_once(self, elsewhere):
        post(elsewhere)
        cancelled = elsewhere.get("/v1/reproductions").json()["items"][0]["links"]["cancel"]
        elsewhere.post(cancelled)
        post(elsewhere)
        names = [each["name"] for each in elsewhere.get("/v1/experiments").json()["items"]]
        assert sum("taken up" in name for name in names) == 1

    @pytest.mark.parametrize("is_json", [False, True])
    def test_a_file_that_cannot_be_read_is_passed_over(self, elsewhere, kept, caplog, is_json):
        file = kept / name_file(NAME, "short")
        content = json.loads(file.read_text())
        content["experiments"][0]["spec"].pop("task")
        file.write_text(json.dumps(content) if is_json else "{}")
        assert post(elsewhere).status_code == 201
        assert "results are not taken up" in caplog.text
        assert len(elsewhere.get("/v1/experiments").json()["items"]) == 1


def test_a_new_service_goes_on_where_the_last_one_stopped(
    client, settings, record, dispatcher, play
):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])
    app = create_app(settings, record, dispatcher)
    assert not Reproducer(app).tick()
    assert app.state.service.reproductions.get(posted["id"]).state == "finished"


def test_suites_that_share_an_experiment_queue_it_once(client):
    first, second = post(client, "enrnn/figure-4").json(), post(client, "enrnn/figure-5").json()
    assert first["id"] != second["id"]
    assert first["experiments"] == second["experiments"]


def test_after_an_update_its_experiments_go_on(client, record, monkeypatch):
    """An earlier version's specs had fewer fields, so its keys were others."""
    first = post(client).json()
    id = first["experiments"][0]["id"]
    spec = copy.deepcopy(record.row(id).spec)
    assert spec["search"].pop("constraints") == []
    change = update(ExperimentRow).values(spec=spec, idempotency_key="another", fingerprint="f")
    database.write(record.url, lambda rows: rows.execute(change))
    monkeypatch.setattr(requested, "VERSION", -1)
    second = post(client).json()
    assert first["id"] != second["id"]
    assert first["experiments"] == second["experiments"]


def test_what_failed_or_was_cancelled_is_queued_once_more(client, reproducer, play):
    posted = post(client).json()
    play(posted["experiments"][0]["id"], "failed")
    reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["state"] == "finished"
    report = client.get(ended["links"]["report"]["json"]).json()
    assert "failed: out of luck" in report["experiments"][0]["problem"]
    again = post(client)
    assert again.status_code == 201
    assert again.json()["experiments"][0]["id"] != posted["experiments"][0]["id"]
    cancelled = client.post(again.json()["links"]["cancel"])
    assert cancelled.json()["state"] == "cancelled"
    assert cancelled.json()["experiments"][0]["state"] == "cancelled"
    assert client.post(again.json()["links"]["cancel"]).status_code == 202
    third = post(client).json()
    assert third["experiments"][0]["state"] == "queued"


def test_one_that_is_asked_for_anew_is_not_written_over(client, reproducer, play, monkeypatch):
    """While the report of one is made, another one is cancelled and asked for again."""
    first = post(client).json()
    other = post(client, resources={"cpus": 2}).json()
    play(first["experiments"][0]["id"])
    make, again = reproducer.reports.children.run, []

    def make_slowly(*order: Any) -> Any:
        client.post(other["links"]["cancel"])
        again.append(post(client, resources={"cpus": 2}).json())
        return make(*order)

    monkeypatch.setattr(reproducer.reports.children, "run", make_slowly)
    reproducer.tick()
    assert client.get(first["links"]["self"]).json()["state"] == "finished"
    now = client.get(other["links"]["self"]).json()
    assert now["state"] == "running"
    assert [each["id"] for each in now["experiments"]] == [
        each["id"] for each in again[0]["experiments"]
    ]


def test_what_was_read_before_a_new_request_is_not_written(client, reproducer):
    posted = post(client).json()
    old = reproducer.reproductions.get(posted["id"])
    client.post(posted["links"]["cancel"])
    again = post(client).json()
    stored = reproducer.reproductions.finish(old, ReportOutcome(verdict="holds"))
    assert stored.state == "running"
    assert client.get(posted["links"]["self"]).json()["experiments"] == again["experiments"]


def test_seeds_that_are_added_to_a_cancelled_one_are_cancelled(client, reproducer, record):
    posted = post(client, until_decided=True).json()
    found = reproducer.reproductions.get(posted["id"])
    client.post(posted["links"]["cancel"])
    assert reproducer.reproductions.widen(found, 3).state == "cancelled"
    states = {item["state"] for item in client.get("/v1/experiments").json()["items"]}
    assert states == {"cancelled"}


def test_an_open_one_keeps_its_limits_and_says_so(client):
    posted = post(client, until_decided=True, most=12).json()
    again = post(client, until_decided=True)
    assert (again.status_code, again.json()["until_decided"]["most"]) == (200, 12)
    refused = post(client, until_decided=True, most=100, core_hours=5)
    assert refused.status_code == 409
    assert (
        "with 12 seeds at most and any number of core hours: cancel it" in refused.json()["detail"]
    )
    client.post(posted["links"]["cancel"])
    opened = post(client, until_decided=True, most=100, core_hours=5)
    assert opened.status_code == 201
    assert opened.json()["until_decided"]["most"] == 100


def test_a_quota_counts_what_is_not_there_yet(client, record):
    Accounts(record.url).create_user("anna", Quotas(max_experiments=1))
    reproductions = client.app.state.service.reproductions
    first, _ = reproductions.add("enrnn/figure-4", "short", "anna")
    shared, _ = reproductions.add("enrnn/figure-5", "short", "anna")
    assert shared.posted == first.posted
    with pytest.raises(QuotaExceededError):
        reproductions.add("enrnn/figure-2", "short", "anna")


def test_what_is_being_deleted_is_queued_once_more(client, reproducer, play):
    posted = post(client).json()
    first = posted["experiments"][0]["id"]
    play(first)
    reproducer.tick()
    deleted = client.post(f"/v1/experiments/{first}/delete", json={"confirm": True})
    assert deleted.json()["state"] == "deleting"
    again = post(client).json()["experiments"][0]
    assert (again["state"], again["id"] != first) == ("queued", True)


def test_a_finished_one_cannot_be_cancelled(client, reproducer, play):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])
    reproducer.tick()
    assert client.post(posted["links"]["cancel"]).status_code == 409


def test_what_this_machine_cannot_do_has_its_reason_told(client, reproducer):
    posted = post(client, "enrnn/figure-3").json()
    assert posted["experiments"][0]["state"] == "unavailable"
    assert "timit" in posted["experiments"][0]["problem"].lower()
    reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["verdict"] == "not comparable"
    assert client.get("/v1/experiments").json()["items"] == []


def test_analyses_are_asked_for_and_decide(client, reproducer):
    posted = post(client, "nnrnn/figure-1c").json()
    assert reproducer.tick()
    reproducer.make_analyses()
    assert not reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert [each["label"] for each in ended["analyses"]] == ["memory"]
    assert ended["verdict"] == "holds", ended


def test_a_report_that_cannot_be_made_says_why_and_is_retried(client, reproducer, play):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])
    reproducer.reports.children.run = lambda folder, order: "its process ended with status 9"
    reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["state"] == "failed"
    assert "status 9" in ended["error"]
    reproducer.reports.children.run = make_report
    assert post(client).status_code == 201
    reproducer.tick()
    assert client.get(posted["links"]["self"]).json()["state"] == "finished"


@pytest.mark.parametrize(
    ("name", "words"),
    [("nnrnn/figure-6b", "has changed since"), ("nnrnn/figure-99", "there is no reproduction")],
)
def test_one_whose_suite_was_changed_or_removed_says_so(client, reproducer, play, name, words):
    posted = post(client).json()
    play(posted["experiments"][0]["id"])
    found = reproducer.reproductions.get(posted["id"])
    reproducer.reproductions.change(found, name=name)
    assert not reproducer.tick()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["state"] == "failed"
    assert words in ended["error"]


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"name": "nnrnn/figure6a"}, 404, "did you mean 'nnrnn/figure-6a'?"),
        ({"name": "../../etc/passwd"}, 404, "there is no reproduction"),
        ({"name": NAME, "budget": "tiny"}, 422, "short"),
        ({"name": NAME, "seed": 3}, 422, "seed"),
        ({}, 422, "name"),
        ([], 422, "an object with named fields"),
    ],
)
def test_bad_input_is_refused_with_what_would_work(client, body, status, words):
    answer = client.post("/v1/reproductions", json=body)
    assert answer.status_code == status
    assert words in answer.text
    assert client.get("/v1/reproductions").json()["items"] == []


def test_unknown_ones_are_not_found(client):
    assert client.get("/v1/reproductions/none").status_code == 404
    assert client.post("/v1/reproductions/none/cancel").status_code == 404
    assert client.get("/v1/reproductions/none/report.json").status_code == 404
    assert client.get("/v1/reproductions/none/report.exe").status_code == 422
    assert "figure-2" in client.get("/v1/reproduction-suites/enrnn/figure2").text


@pytest.mark.parametrize(("status", "is_told"), [(404, False), (500, True), (503, True)])
def test_results_that_cannot_be_fetched_are_not_passed_over(tmp_path, monkeypatch, status, is_told):
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 0.0)
    service = Mock()
    service.get.return_value = {
        "items": [{"id": "r1", "name": NAME, "links": {"report": {"results": "/"}}}]
    }
    service.download.side_effect = RefusedError(status, {})
    with pytest.raises(RefusedError) if is_told else nullcontext():
        save_results(service, [NAME], "short", tmp_path, None)


@pytest.mark.parametrize(
    ("error", "lives", "is_told"),
    [
        (ServiceAwayError("timed out"), True, False),
        (RefusedError(503, {}), True, False),
        (ServiceAwayError("timed out"), False, True),
        (ServiceAwayError("timed out"), None, True),
        (RefusedError(404, {}), True, True),
    ],
)
def test_a_service_that_lives_is_waited_for(monkeypatch, error, lives, is_told):
    """A starved machine may let it answer nothing for minutes, and it would end with `--serve`."""
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 0.0)
    over = {"state": "finished", "fraction": 1.0, "verdict": "holds", "words": "all"}
    found = Mock(id="r1", is_over=True, content=over, state="finished")
    found.refresh.side_effect = [error, error, None]
    service = Mock()
    service.reproduce.return_value = found
    how = {"quiet": True, "lives": None if lives is None else lambda: lives}
    with pytest.raises(type(error)) if is_told else nullcontext():
        assert follow(service, [NAME], "short", Console(), **how) == [found]
    assert found.refresh.call_count == (1 if is_told else 3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_service_that_was_started(monkeypatch, tmp_path, number):
    ended = []

    @contextmanager
    def run(home: Path, screen: Any) -> Iterator[Any]:
        try:
            yield Mock()
        finally:
            ended.append(home)

    monkeypatch.setattr("eigensweep.command.reproduce.running_service", run)
    monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
    monkeypatch.setenv("EIGENSWEEP_URL", "http://127.0.0.1:1")
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:  # a shell's background job ignores both
        with (
            pytest.raises((SystemExit, KeyboardInterrupt)),
            service_of_our_own(Mock(as_json=False), None),
        ):
            signal.raise_signal(number)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert ended == [tmp_path]


def test_suites_are_listed_with_their_cost_and_what_they_post(client):
    items = client.get("/v1/reproduction-suites").json()["items"]
    assert [each["name"] for each in items] == suite_names()
    assert all(each["core_minutes"]["short"] <= 40 for each in items)
    missing = {each["name"] for each in items if each["missing"]}
    assert missing >= {"enrnn/figure-3", "asrnn/table-4"}  # TIMIT, Penn Treebank
    assert not missing & {"nnrnn/figure-1c", "enrnn/figure-2"}
    entry = client.get("/v1/reproduction-suites/enrnn/figure-2").json()
    spec = entry["specs"]["short"]["main"]
    assert spec["task"]["delay"] == 500
    assert client.post("/v1/experiments/preview", json=spec).status_code == 200


def test_listing_selects(client):
    post(client)
    post(client, "enrnn/figure-4")
    found = client.get("/v1/reproductions", params={"name": NAME}).json()["items"]
    assert [each["name"] for each in found] == [NAME]
    assert client.get("/v1/reproductions", params={"state": "finished"}).json()["items"] == []


class TestCommandLine:
    @pytest.fixture
    def run(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
        """Return a function that runs the command against the application."""
        from typer.testing import CliRunner

        from eigensweep.client import Client
        from eigensweep.command import cli, frame
        from eigensweep.command import reproduce as work

        class InProcess(Client):
            def __init__(self, url: str | None = None, token: str | None = None) -> None:
                self.url = "http://service"
                self._http = client  # type: ignore[assignment]

            def close(self) -> None:
                pass

        monkeypatch.setattr(frame, "Client", InProcess)
        monkeypatch.setattr(work, "PASS_SECONDS", 0.0)
        return lambda *words: CliRunner().invoke(cli.app, ["reproduce", *words])

    @pytest.fixture
    def home(self, monkeypatch: pytest.MonkeyPatch, settings: Settings, record: Record) -> Path:
        """The home folder of the application, which commands without a service read."""
        monkeypatch.setenv("EIGENSWEEP_HOME", str(settings.home))
        monkeypatch.setenv("EIGENSWEEP_DATABASE_URL", record.url)
        return settings.home

    @pytest.fixture
    def finished(
        self, client: TestClient, reproducer: Reproducer, play: Callable[..., None]
    ) -> Any:
        """A reproduction that has finished."""
        posted = post(client).json()
        play(posted["experiments"][0]["id"])
        reproducer.tick()
        ended = client.get(posted["links"]["self"]).json()
        assert ended["state"] == "finished"
        return ended

    @pytest.mark.usefixtures("drawn")
    def test_it_prints_the_report_and_writes_it(self, client, reproducer, play, run, tmp_path):
        posted = post(client).json()
        play(posted["experiments"][0]["id"])
        reproducer.tick()
        done = run(NAME, "--out", str(tmp_path / "out"), "--page", str(tmp_path / "docs" / "p.md"))
        assert done.exit_code == 0, done.output
        assert "**Verdict:" in done.output
        assert "256 comes below half of the baseline before 128" in done.output
        written = {path.name for path in (tmp_path / "out").iterdir()}
        assert written == {f"nnrnn-figure-5b.{kind}" for kind in ("html", "md", "json", "svg")}
        assert "](nnrnn-figure-5b.svg)" in (tmp_path / "out" / "nnrnn-figure-5b.md").read_text()
        page = (tmp_path / "docs" / "p.md").read_bytes()
        assert b"](p/nnrnn-figure-5b.svg)" in page
        assert b"LDC93S1" in page
        assert (tmp_path / "docs" / "p" / "nnrnn-figure-5b.svg").stat().st_size > 1000
        assert (tmp_path / "docs" / "p" / "results" / name_file(NAME, "short")).is_file()

    def test_the_page_is_made_again_without_a_service(
        self, client, reproducer, play, run, tmp_path, monkeypatch
    ):
        from eigensweep.command import frame

        posted = post(client).json()
        play(posted["experiments"][0]["id"])
        reproducer.tick()
        page = tmp_path / "p.md"
        run(NAME, "--page", str(page), "--note", "nothing else")
        before = page.read_bytes()
        page.unlink()
        monkeypatch.delattr(frame, "Client")
        done = run("--page-only", "--page", str(page))
        assert done.exit_code == 0, done.output
        assert page.read_bytes() == before
        (tmp_path / "p" / "results" / "x.json").write_text("[]")
        done = run("--page-only", "--page", str(page))
        assert done.exit_code == 2
        assert "x.json holds no results" in done.output
        done = run("--page-only", "--page", str(page), "--results", str(tmp_path / "none"))
        assert (done.exit_code, page.read_bytes()) == (2, before)
        assert "none has no results, so the page would be empty" in done.output
        assert not (tmp_path / "none").exists()

    def test_a_folder_without_reports_is_not_called_written(self, client, tmp_path):
        posted = post(client).json()
        client.post(f"{posted['links']['self']}/cancel")
        cancelled = client.get(posted["links"]["self"]).json()
        screen, page = Console(file=io.StringIO(), width=500), tmp_path / "page.md"
        show_end(client, [Reproduction(client, cancelled)], tmp_path / "out", page, screen)
        assert screen.file.getvalue() == f"written: {page}\n"

    @pytest.mark.parametrize("name", [".", ""])
    def test_a_name_that_would_ask_for_the_list_is_refused(self, run, name):
        done = run(name, "--until-decided")
        assert done.exit_code == 2
        assert "expected the name of a table or figure" in done.output

    def test_results_of_a_home_without_a_record_are_refused(self, run, tmp_path, monkeypatch):
        monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path / "empty"))
        done = run("--results-only", "--results", str(tmp_path / "kept"))
        assert done.exit_code == 1
        assert f"there is no record in {tmp_path / 'empty'}; set EIGENSWEEP_HOME" in done.output

    def test_results_of_a_home_folder_are_kept_without_a_service(
        self, client, finished, run, tmp_path, home
    ):
        told = read_results(client.get(finished["links"]["report"]["results"]).content)
        (home / "reproductions" / finished["id"] / "results.json").unlink()
        done = run("--results-only", "--results", str(tmp_path / "kept"), "--note", "a test")
        assert done.exit_code == 0, done.output
        kept = read_results((tmp_path / "kept" / name_file(NAME, "short")).read_bytes())
        assert kept == told.model_copy(update={"note": "a test", "made_at": kept.made_at})
        words = ("--results-only", "--results", str(tmp_path / "kept"))
        assert "nothing new to keep" in run(*words, "--note", "other", "enrnn/figure-2").output
        assert run(*words, NAME).exit_code == 0
        again = read_results((tmp_path / "kept" / name_file(NAME, "short")).read_bytes())
        assert again.note == "a test", "without a note, the one before stays"
        assert "did you mean 'enrnn/figure-2'" in run(*words, "enrnn/figure-222").output
        assert run("--page-only", NAME).exit_code == 2

    def test_results_are_kept_though_no_report_was_made(
        self, client, reproducer, play, run, tmp_path, home
    ):
        posted = post(client).json()
        place = tmp_path / "kept" / name_file(NAME, "short")
        assert run("--results-only", "--results", str(place.parent)).exit_code == 0
        assert not place.exists()
        play(posted["experiments"][0]["id"])
        reproducer.reports.children.run = lambda folder, order: "it has no SciPy"
        reproducer.tick()
        assert client.get(posted["links"]["self"]).json()["state"] == "failed"
        assert run("--results-only", "--results", str(place.parent)).exit_code == 0
        assert all(trial.curves for trial in read_results(place.read_bytes()).experiments[0].trials)

    def test_results_are_kept_though_the_report_is_gone(
        self, client, finished, run, tmp_path, home
    ):
        shutil.rmtree(home / "reproductions" / finished["id"])
        place = tmp_path / "kept" / name_file(NAME, "short")
        done = run("--results-only", "--results", str(place.parent))
        assert done.exit_code == 0, done.output
        assert all(trial.curves for trial in read_results(place.read_bytes()).experiments[0].trials)

    def test_trials_of_an_unfinished_one_are_kept_for_others(
        self, client, play, run, tmp_path, home, empty_record
    ):
        experiment = post(client).json()["experiments"][0]["id"]
        play(experiment, trials=1)
        folder = tmp_path / "kept"
        place = folder / UNFINISHED / name_file(NAME, "short")
        words = ("--results-only", "--results", str(folder), "--note", "a test")
        assert run(*words).output == f"written: {place}\n"
        content = place.read_bytes()
        (kept,) = read_results(content).experiments[0].trials
        assert (kept.number, kept.state, len(kept.curves)) == (0, "completed", 10)
        again = run(*words)
        assert again.stdout == "", "nothing has finished since"
        assert again.stderr == f"{folder}: there is nothing new to keep\n"
        assert place.read_bytes() == content
        assert read_folder(folder) == [], "no page shows them"
        with serve_elsewhere(tmp_path, empty_record, folder) as other:
            id = post(other).json()["experiments"][0]["id"]
            ledger = RecordLedger(other.app.state.service.record.url, id, 1)
            config, steps = kept.config, kept.config["training"]["steps"]
            found = ledger.find_finished(kept.config_hash, config["seed"], 10, steps)
            assert found.result.value == pytest.approx(kept.result["value"])
            origins = {each.origin for each in found.result.by_replicate}
            assert origins == {read_results(content).origin}

    def test_the_file_of_the_whole_suite_takes_its_place(
        self, client, finished, run, tmp_path, home
    ):
        whole = read_results(client.get(finished["links"]["report"]["results"]).content)
        part = tmp_path / "kept" / UNFINISHED / name_file(NAME, "short")
        part.parent.mkdir(parents=True)
        trials = whole.experiments[0].trials[:1]
        experiments = [whole.experiments[0].model_copy(update={"trials": trials})]
        part.write_bytes(write_results(whole.model_copy(update={"experiments": experiments})))
        assert run("--results-only", "--results", str(tmp_path / "kept")).exit_code == 0
        assert not part.exists()
        assert (tmp_path / "kept" / part.name).is_file()

    @pytest.mark.parametrize("state", ["stalled", "failed"])
    def test_one_with_a_trial_that_was_lost_is_not_whole(
        self, client, finished, run, tmp_path, home, state
    ):
        lose = update(TrialRow).where(TrialRow.number == 0).values(state=state)
        database.write(client.app.state.service.record.url, lambda rows: rows.execute(lose))
        place = tmp_path / "kept" / UNFINISHED / name_file(NAME, "short")
        assert run("--results-only", "--results", str(tmp_path / "kept")).exit_code == 0
        kept = read_results(place.read_bytes()).experiments[0].trials
        assert kept
        assert 0 not in [trial.number for trial in kept]
        assert read_folder(tmp_path / "kept") == []

    def test_one_whose_experiment_was_deleted_is_left_out(self, client, run, tmp_path, home):
        posted = post(client).json()
        missing = {"main": Posted("none")}
        reproductions = client.app.state.service.reproductions
        reproductions.change(reproductions.get(posted["id"]), experiments=missing)
        done = run("--results-only", "--results", str(tmp_path / "kept"))
        assert done.exit_code == 0, done.output
        assert f"{NAME} (short) is left out: " in done.output

    def test_all_leaves_out_what_needs_a_licence(self, client):
        from eigensweep.command.reproduce import choose

        listing = client.get("/v1/reproduction-suites").json()

        class Listing:
            def get(self, path: str) -> Any:
                return listing

        short, full = (choose(Listing(), budget) for budget in ("short", "full"))  # type: ignore[arg-type]
        assert set(suite_names()) - set(short) == {"enrnn/figure-3", "enrnn/table-2"}
        assert "asrnn/table-1" not in full
        assert "nnrnn/figure-2" in full

    def test_seeds_are_added_with_an_option_after_the_plan(self, client, reproducer, play, run):
        asked = {"name": NAME, "until_decided": True, "core_hours": 1.5, "most": 10}
        posted = client.post("/v1/reproductions", json=asked).json()
        play(posted["experiments"][0]["id"])
        reproducer.tick()
        done = run(NAME, "--until-decided", "--core-hours", "1.5", "--most", "10")
        assert done.exit_code == 0, done.output
        words = " ".join(done.output.split())
        assert (
            f"{NAME}: to decide a difference of the same sign on all seeds: about 8 seeds" in words
        )
        assert words.index("to decide") < words.index("Verdict:")
        assert "10 seeds are the most that were asked for" in words
        assert len(client.get("/v1/reproductions").json()["items"]) == 1
        refused = run(NAME, "--most", "12")
        assert refused.exit_code != 0
        assert "give 'until_decided', too" in refused.output

    def test_it_trains_in_lanes_of_a_gpu(self, client, reproducer, play, run):
        asked = {"name": NAME, "resources": {"gpus": 1, "lanes": 8}}
        posted = client.post("/v1/reproductions", json=asked).json()
        assert (posted["resources"]["gpus"], posted["resources"]["lanes"]) == (1, 8)
        id = posted["experiments"][0]["id"]
        spec = client.get(f"/v1/experiments/{id}").json()["spec"]
        assert (spec["resources"]["gpus"], spec["resources"]["lanes"]) == (1, 8)
        page = client.get(posted["links"]["page"]).text
        assert "<dt>resources of a trial</dt><dd>1 GPU, lanes: 8</dd>" in page
        play(id)
        reproducer.tick()
        done = run(NAME, "--gpus", "1", "--lanes", "8")
        assert done.exit_code == 0, done.output
        assert f"{NAME} --budget short --gpus 1 --lanes 8" in " ".join(done.output.split())
        assert len(client.get("/v1/reproductions").json()["items"]) == 1
        refused = run(NAME, "--gpus", "0.5", "--lanes", "auto")
        assert refused.exit_code == 2
        assert "all that train side by side share one device" in refused.output

    def test_it_trains_several_seeds_at_once(self, client, reproducer, play, run):
        asked = {"name": NAME, "resources": {"cpus": 4}}
        id = client.post("/v1/reproductions", json=asked).json()["experiments"][0]["id"]
        assert client.get(f"/v1/experiments/{id}").json()["spec"]["resources"]["cpus"] == 4
        play(id)
        reproducer.tick()
        done = run(NAME, "--cpus", "4")
        assert done.exit_code == 0, done.output
        assert f"{NAME} --budget short --cpus 4" in " ".join(done.output.split())
        assert len(client.get("/v1/reproductions").json()["items"]) == 1

    def test_several_names_are_run_with_one_command(self, client, run):
        client.post("/v1/reproductions", json={"name": NAME})
        done = run(NAME, "nnrnn/figure6a")
        assert done.exit_code == 2
        assert "did you mean 'nnrnn/figure-6a'?" in done.output

    def test_the_list_has_every_suite(self, run):
        listed = run("--list").output
        assert all(name in listed for name in suite_names())

    @pytest.mark.parametrize("option", ["--out", "--page"])
    def test_an_unwritable_place_is_refused_before_a_post(self, client, run, tmp_path, option):
        (tmp_path / "file").touch()
        done = run(NAME, option, str(tmp_path / "file" / "page"))
        assert done.exit_code == 2, done.output
        assert f"error: {tmp_path / 'file'}" in done.output
        assert client.get("/v1/reproductions").json()["items"] == []

    @pytest.mark.parametrize(
        ("words", "hint"),
        [
            ((), "--all; --list shows the names"),
            ((NAME, "--all"), "--all; --list shows the names"),
            (("nnrnn/figure6a",), "did you mean 'nnrnn/figure-6a'?"),
            ((NAME, "--budget", "tiny"), "short"),
        ],
    )
    def test_bad_input_is_answered_with_what_would_work(self, run, words, hint):
        done = run(*words)
        assert done.exit_code == 2, done.output
        assert hint in done.output

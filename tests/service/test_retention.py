"""Which checkpoints stay of experiments that are over, half-way deaths included; disk use."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from markupsafe import escape
from orders import make_order
from starlette.testclient import TestClient
from typer.testing import CliRunner

from eigensweep.command import frame
from eigensweep.command.cli import app as command_line
from eigensweep.protocol.messages import Notice
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers import shared_answers
from eigensweep.service.api.answers.writers import BusyError
from eigensweep.service.api.routes import storage as storage_routes
from eigensweep.service.queue.jobs import JobRunner
from eigensweep.service.queue.retention import PruningHandler
from eigensweep.service.record.changes.retention import DAY
from eigensweep.service.record.errors import ConflictError, WrongStateError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.store_probe import StoreProbe
from eigensweep.store.checkpoints import Store, replicate_key, trial_key
from eigensweep.store.places.durable_files import StorageError, StoreAwayError
from eigensweep.store.upkeep import corpora
from eigensweep.store.upkeep.thinning import thin_out
from eigensweep.training.attempt import Attempt
from eigensweep.workers.driver.deletion import remove

STEPS = 8


def train(record: Record, storage: Path, content: dict[str, Any], owner: str = "anna") -> str:
    """Post an experiment and train trial 0 to its end; trial 1 fails after its first commit."""
    spec = ExperimentSpec.model_validate(content)
    id = record.add(spec, None, owner)[0].id
    claim = record.claim(id)
    assert claim is not None
    ledger = RecordLedger(record.url, id, claim.generation, patience=0)
    for number, rate in enumerate((1e-3, 1e-2)):
        params = {"optimizer.lr": rate}
        config = spec.trial(Point("scornn", params))
        body = config.model_dump(mode="json")
        ledger.open(number, "scornn", params, body, config.content_hash())
        attempt = ledger.begin(number)
        work = Attempt(make_attempt(id, number, attempt, body, storage), "cpu")
        work.advance()
        if number == 0:
            ledger.finish(number, attempt, "completed", work.advance().result)
        else:
            ledger.finish(number, attempt, "failed", None, "KeyError: no")
        ledger.set_delivered({}, "1", [number])
    ledger.end("completed")
    ledger.set_tracked()
    return id


def make_attempt(id: str, number: int, attempt: int, config: Any, storage: Path) -> Any:
    return make_order(
        experiment=id,
        number=number,
        attempt=attempt,
        config=config,
        rungs=(STEPS // 2, STEPS),
        storage=str(storage),
    )


@pytest.fixture
def storage(settings: Any) -> Path:
    return Path(settings.storage_folder)


@pytest.fixture
def content(spec: Any) -> dict[str, Any]:
    return spec(**{"training/steps": STEPS, "training/evaluate_every": 2})


@pytest.fixture
def id(record: Record, storage: Path, content: dict[str, Any]) -> str:
    return train(record, storage, content)


@dataclass
class Pruner:
    """What removes checkpoints."""

    runner: JobRunner

    def tick(self) -> None:
        """Remove what is to be removed."""
        self.runner.tick(self.runner.handlers[0])


def find_rule(record: Record, id: str) -> str | None:
    """Return the rule by which checkpoints of an experiment are still to be removed."""
    job = Jobs(record.url).find("pruning", id)
    return None if job is None else job.request["keep"]


@pytest.fixture
def make(record: Record, storage: Path) -> Callable[..., Pruner]:
    """Return what a service that is started now has."""

    def make(**rule: Any) -> Pruner:
        handler = PruningHandler(record, StoreProbe(str(storage)), **rule)
        return Pruner(JobRunner(Jobs(record.url), [handler]))

    return make


def files(storage: Path, id: str, number: int) -> list[str]:
    """Return the names of weights and checkpoints, without the part that is drawn."""
    folder = storage / replicate_key(id, number, 0)
    return sorted(
        re.sub(r"-[0-9a-f]{8}\.", ".", path.name)
        for path in folder.iterdir()
        if path.suffix == ".pt"
    )


class TestRules:
    @pytest.mark.parametrize(
        ("keep", "completed", "failed"),
        [
            ("last", ["best-1.pt", "step-000000008-2.pt"], ["step-000000004-1.pt"]),
            ("best", ["best-1.pt"], ["step-000000004-1.pt"]),
            ("none", [], []),
        ],
    )
    def test_each_leaves_what_it_names(self, record, storage, id, make, keep, completed, failed):
        curves = [Store(storage).points(replicate_key(id, number, 0)) for number in (0, 1)]
        expected = record.measure_prunable(Store(storage), id, keep)
        before = sum(f.stat().st_size for f in storage.rglob("*.pt"))
        record.prune(id, keep)
        make().tick()
        assert (files(storage, id, 0), files(storage, id, 1)) == (completed, failed)
        freed = before - sum(f.stat().st_size for f in storage.rglob("*.pt"))
        assert freed == expected > 0
        assert [Store(storage).points(replicate_key(id, n, 0)) for n in (0, 1)] == curves
        row = record.row(id)
        assert (row.kept, find_rule(record, id)) == (keep, None)
        assert record.experiment(id).best.trial.number == 0

    def test_a_damaged_last_checkpoint_gives_way_to_the_one_before(self, record, storage, id, make):
        (newest,) = (storage / replicate_key(id, 0, 0)).glob("step-000000008-*.pt")
        newest.write_bytes(b"damaged")
        record.prune(id, "last")
        make().tick()
        assert files(storage, id, 0) == ["best-1.pt", "step-000000004-1.pt"]
        assert Store(storage).newest(replicate_key(id, 0, 0)).step == STEPS // 2

    def test_what_goes_on_or_is_being_delivered_is_left_alone(self, record, storage, content):
        running = record.add(ExperimentSpec.model_validate(content))[0].id
        with pytest.raises(WrongStateError, match="nothing to prune"):
            record.prune(running, "none")
        claim = record.claim(running)
        RecordLedger(record.url, running, claim.generation).end("completed")
        with pytest.raises(ConflictError, match="delivered to MLflow"):
            record.prune(running, "none")


class TestDeaths:
    def test_it_waits_for_a_store_that_is_not_mounted(self, client, record, storage, id, make):
        mounted = storage.rename(storage.with_name("mounted"))
        storage.mkdir()
        record.prune(id, "none")
        pruner = make()
        pruner.tick()
        assert find_rule(record, id) == "none"
        (notice,) = client.get(f"/v1/experiments/{id}").json()["notices"]
        assert notice["kind"] == "pruning"
        assert notice["words"].startswith("not pruned yet: ")
        assert "storage is empty" in notice["words"]
        assert str(escape(notice["words"])) in client.get(f"/experiments/{id}").text
        storage.rmdir()
        mounted.rename(storage)
        pruner.runner.clock = lambda: 1e12
        pruner.tick()
        assert (find_rule(record, id), files(storage, id, 0)) == (None, [])
        assert record.row(id).notices is None

    def test_what_is_being_deleted_has_the_notices_of_its_deletion(self, record, storage, id, make):
        record.prune(id, "none")
        record.delete(id)
        make().tick()
        assert Jobs(record.url).find("pruning", id).error == "the experiment is deleting"
        assert record.row(id).notices is None

    def test_a_service_that_dies_half_way_has_the_next_one_go_on(
        self, record, storage, id, make, monkeypatch
    ):
        record.prune(id, "none")
        whole = Path.unlink

        def die(path: Path, missing_ok: bool = False) -> None:
            whole(path, missing_ok)
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", die)
            with pytest.raises(KeyboardInterrupt):
                make().tick()
        key = replicate_key(id, 0, 0)
        assert Store(storage).newest(key) is None  # the store is whole: its head names no file
        assert len(Store(storage).points(key)) > 0
        assert find_rule(record, id) == "none"
        make().tick()
        assert files(storage, id, 0) == files(storage, id, 1) == []
        assert find_rule(record, id) is None

    def test_a_trial_tried_again_meanwhile_keeps_its_new_commits(self, record, storage, id, make):
        record.prune(id, "none")
        trials = record.list_ended_trials(id)
        record.retry(id)
        work = Attempt(make_attempt(id, 1, 2, record.trial(id, 1).trial.config, storage), "cpu")
        work.advance()
        freed = [
            thin_out(Store(storage), trial_key(id, t.number), "none", t.attempt) for t in trials
        ]
        assert freed[0] > 0
        assert freed[1] == 0
        assert work.advance().outcome == "completed"
        make().tick()  # it is queued now, so nothing of it is touched
        assert len(files(storage, id, 1)) == 3


def test_what_mlflow_has_not_got_yet_is_pruned_later(record, id, storage, make):
    record.prune(id, "none")
    record.retry(id)
    ledger = RecordLedger(record.url, id, record.claim(id).generation, patience=0)
    attempt = ledger.begin(1)
    work = Attempt(make_attempt(id, 1, attempt, record.trial(id, 1).trial.config, storage), "cpu")
    ledger.finish(1, attempt, "completed", work.advance().result)
    ledger.end("completed")
    kept, pruner = files(storage, id, 1), make()
    pruner.tick()
    assert (find_rule(record, id), files(storage, id, 1)) == ("none", kept)
    assert kept
    ledger.set_tracked()
    pruner.runner.clock = lambda: time.time() + 3600
    pruner.tick()
    assert (find_rule(record, id), files(storage, id, 1)) == (None, [])


class TestGoingOn:
    def test_a_longer_budget_without_checkpoints_is_refused(self, client, record, id, content):
        longer = {**content, "training": {**content["training"], "steps": 2 * STEPS}}
        record.prune(id, "last")
        record.prune(id, "best")
        record.prune(id, "last")
        assert record.row(id).kept == "best"
        answer = client.post(f"/v1/experiments/{id}/extend", json=longer)
        assert answer.status_code == 409
        assert f"eigensweep fork {id}" in answer.json()["detail"]
        assert record.row(id).state == "completed"

    def test_with_the_last_checkpoints_it_goes_on(self, client, record, id, storage, content, make):
        record.prune(id, "last")
        make().tick()
        longer = {**content, "training": {**content["training"], "steps": 2 * STEPS}}
        assert client.post(f"/v1/experiments/{id}/extend", json=longer).status_code == 202
        config = record.trial(id, 0).trial.config
        work = Attempt(make_attempt(id, 0, 2, config, storage), "cpu")
        assert work.reached_step == STEPS

    def test_without_checkpoints_a_retry_begins_anew_and_says_so(
        self, client, record, id, storage, make
    ):
        key = replicate_key(id, 1, 0)
        record.prune(id, "none")
        make().tick()
        assert client.post(f"/v1/experiments/{id}/retry").status_code == 202
        assert "from the start" in record.events(id)[-1].data["reason"]
        before = Store(storage).points(key)
        work = Attempt(make_attempt(id, 1, 2, record.trial(id, 1).trial.config, storage), "cpu")
        assert work.reached_step == 0
        work.advance()
        work.advance()
        points = Store(storage).points(key)
        assert points[: len(before)] == before
        steps = [point.step for point in points]
        assert steps == sorted(set(steps))
        assert steps[-1] == STEPS

    @pytest.mark.parametrize(
        ("keep", "options", "words"),
        [
            ("best", {"weights": "last"}, "weights=best"),
            ("best", {"weights": "best"}, None),
            ("none", {"weights": "best"}, "holds no checkpoint"),
        ],
    )
    def test_analyses_use_what_is_left_or_say_what_would_work(
        self, client, record, id, make, keep, options, words
    ):
        record.prune(id, keep)
        make().tick()
        body = {"name": "hidden_states", "experiment": id, "trial": 0, "options": options}
        answer = client.post("/v1/analyses", json=body)
        assert answer.status_code == (409 if words else 201), answer.text
        assert words is None or words in answer.json()["detail"]


class TestCorpora:
    @pytest.fixture
    def publish(self, storage: Path, tmp_path: Path) -> Callable[[str], str]:
        """Return what the next driver of an experiment does."""
        (file := tmp_path / "data" / "a.txt").parent.mkdir()
        file.write_bytes(b"a")

        def publish(id: str) -> str:
            return corpora.publish(Store(storage), [file], file.parent, corpora.name_user(id))

        return publish

    def test_one_goes_when_all_that_use_it_are_pruned_or_deleted(
        self, record, storage, id, make, content, publish, tmp_path
    ):
        store, running = Store(storage), record.add(ExperimentSpec.model_validate(content))[0].id
        assert publish(id) == (archive := publish(running))
        record.prune(id, "last")
        make().tick()
        assert corpora.list_users(store, id) == []
        assert store.files.names(corpora.FOLDER) == [archive]
        remove(running, "project", str(storage), None)
        make().tick()
        assert store.files.names(corpora.FOLDER) == []

    def test_one_that_cannot_be_removed_holds_up_no_pruning(
        self, record, storage, id, make, publish, monkeypatch
    ):
        def refuse(store: Store) -> None:
            raise StorageError("cannot remove .corpora/a.tar: Permission denied")

        publish(id)
        monkeypatch.setattr(corpora, "remove_unused", refuse)
        record.prune(id, "best")
        make().tick()
        assert (record.row(id).kept, find_rule(record, id)) == ("best", None)

    def test_one_stays_if_its_experiment_is_taken_up_meanwhile(
        self, record, storage, id, make, publish, monkeypatch
    ):
        archive, look = publish(id), record.row

        def look_after_a_retry(asked: str) -> Any:
            monkeypatch.setattr(record, "row", look)
            record.retry(id)
            publish(id)
            return look(asked)

        record.prune(id, "last")
        monkeypatch.setattr(record, "row", look_after_a_retry)
        make().tick()
        assert len(corpora.list_users(Store(storage), id)) == 2
        assert Store(storage).files.names(corpora.FOLDER) == [archive]


class TestSchedule:
    def test_it_prunes_once_and_again_what_was_taken_up(self, record, storage, id, make):
        ended = record.row(id).finished_at
        now = [ended + 9 * DAY]
        pruner = make(keep="best", after_days=10, every_hours=24, clock=lambda: now[0])
        pruner.tick()
        assert record.row(id).kept is None
        now[0] = ended + 10 * DAY
        pruner.tick()
        assert (record.row(id).kept, files(storage, id, 0)) == ("best", ["best-1.pt"])
        assert record.list_prunable("best") == []
        assert record.list_prunable("none") == [id]

    def test_a_clock_that_was_set_back_is_not_waited_for(self, record, storage, monkeypatch):
        now, looks = [400 * DAY], []
        probe = StoreProbe(str(storage))
        handler = PruningHandler(record, probe, every_hours=24, clock=lambda: now[0])
        monkeypatch.setattr(handler, "_remove_corpora", lambda: looks.append(now[0]))
        for day in (400, 400.5, 35, 35.5, 36):
            now[0] = day * DAY
            handler.look()
        assert looks == [400 * DAY, 35 * DAY, 36 * DAY]

    def test_an_end_of_pruning_takes_no_notices_of_what_runs(self, record, id):
        record.prune(id, "best")
        record.retry(id)
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        ledger.record_notices([Notice("code", "node 2 has other files")])
        record.set_pruned(id, "best")
        (notice,) = record.row(id).notices
        assert notice["words"] == "node 2 has other files"

    def test_by_default_nothing_goes(self, record, storage, id, make, settings):
        assert settings.keep is None
        make(keep=settings.keep, after_days=0).tick()
        assert record.row(id).kept is None
        assert len(files(storage, id, 0)) == 3


class TestRoute:
    @pytest.fixture
    def of(self, client: TestClient, record: Record) -> Callable[..., TestClient]:
        accounts = Accounts(record.url)

        def make_client(user: str, scope: Any = "submit") -> TestClient:
            made = TestClient(client.app, base_url="http://localhost:8642")
            token = accounts.create_token(user, scope, 3600).token
            made.headers["Authorization"] = f"Bearer {token}"
            return made

        return make_client

    def test_first_it_is_only_told_and_then_done(self, client, record, id, make, storage):
        told = client.post("/v1/storage/prune", json={"keep": "none"}).json()
        assert (told["dry_run"], [item["id"] for item in told["items"]]) == (True, [id])
        assert record.row(id).kept is None
        done = client.post("/v1/storage/prune", json={"keep": "none", "dry_run": False})
        assert done.status_code == 202
        assert done.json()["bytes"] == told["bytes"] > 0
        before = sum(f.stat().st_size for f in storage.rglob("*.pt"))
        make().tick()
        assert before - sum(f.stat().st_size for f in storage.rglob("*.pt")) == told["bytes"]
        assert client.get(f"/v1/experiments/{id}").json()["kept"] == "none"
        assert client.post("/v1/storage/prune", json={"keep": "none"}).json()["items"] == []
        entries = [each["detail"] for each in client.get("/v1/audit").json()["items"]][:3]
        dry = "dry run of prune, keep none"
        assert entries == [f"{dry}: nothing", f"prune, keep none: {id}", f"{dry}: {id}"]

    def test_a_user_prunes_what_is_the_users_own(self, of, record, id):
        anna, bob, boss = of("anna"), of("bob"), of("boss", "admin")
        assert bob.post("/v1/storage/prune", json={"keep": "last"}).json()["items"] == []
        body = {"keep": "last", "experiments": [id, "n" * 33], "dry_run": False}
        first, second = bob.post("/v1/storage/prune", json=body).json()["items"]
        assert "belongs to user 'anna'" in first["problem"]
        assert f"no experiment '{'n' * 33}'" in second["problem"]
        assert record.row(id).kept is None
        for client in (anna, boss):
            (item,) = client.post("/v1/storage/prune", json={"keep": "last"}).json()["items"]
            assert (item["id"], item["problem"]) == (id, None)
        assert of("carl", "read").post("/v1/storage/prune", json=body).status_code == 403

    def test_what_ended_lately_is_left_alone(self, client, id):
        body = {"keep": "last", "older_than_days": 1}
        assert client.post("/v1/storage/prune", json=body).json()["items"] == []
        body["experiments"] = [id]
        (item,) = client.post("/v1/storage/prune", json=body).json()["items"]
        assert "ended later" in item["problem"]

    def test_a_request_looks_at_experiments_for_so_long(self, client, id, monkeypatch):
        monkeypatch.setattr(storage_routes, "LONGEST_SECONDS", 0.0)
        answer = client.post("/v1/storage/prune", json={"keep": "none"}).json()
        assert (answer["items"], answer["more"]) == ([], True)

    def test_what_was_pruned_before_the_store_left_is_told(
        self, client, record, id, storage, content, monkeypatch
    ):
        other, last = (train(record, storage, content) for _ in range(2))
        whole, away = Record.measure_prunable, Mock(side_effect=StoreAwayError("no answer"))
        measures = iter([whole, away, away])
        found = lambda *given: next(measures)(record, *given)  # noqa: E731
        monkeypatch.setattr(record, "measure_prunable", found)
        body = {"keep": "none", "experiments": [id, other, last], "dry_run": False}
        answer = client.post("/v1/storage/prune", json=body)
        assert answer.status_code == 202
        problems = [each["problem"] for each in answer.json()["items"]]
        assert problems == [None, "no answer", "no answer"]
        assert (find_rule(record, id), find_rule(record, other)) == ("none", None)
        assert client.post("/v1/storage/prune", json=body).status_code == 503

    def test_a_page_offers_no_weights_that_were_pruned(self, client, record, id, make):
        page = f"/experiments/{id}/trials/0"
        assert "weights?seed=0" in client.get(page).text
        record.prune(id, "none")
        make().tick()
        assert "weights?seed=0" not in client.get(page).text


class TestDiskUse:
    def test_who_asks_while_it_is_measured_has_the_answer_before(self, monkeypatch):
        monkeypatch.setattr(shared_answers, "PATIENCE_SECONDS", 0.01)
        begun, may_end, answers = threading.Event(), threading.Event(), iter((1, 2))

        def measure() -> int:
            begun.set()
            may_end.wait(10)
            return next(answers)

        cache = shared_answers.TimedCache(measure, seconds=0.0, share=1e9)
        for wanted in (1, 2):
            with ThreadPoolExecutor() as pool:
                first = pool.submit(cache.read)
                assert begun.wait(10)
                if wanted == 1:
                    with pytest.raises(BusyError, match="for the first time"):
                        cache.read()
                else:
                    assert cache.read() == 1
                may_end.set()
                assert first.result(10) == wanted
            begun.clear()
            may_end.clear()

    def test_storage_is_told_by_part_user_and_experiment(
        self, client, record, id, storage, content, settings
    ):
        other = train(record, storage, content, "bob")
        (settings.home / "eigensweep.db").write_bytes(b"x" * 5000)
        (settings.home / "eigensweep.db-wal").write_bytes(b"x" * 600)
        (storage / corpora.FOLDER).mkdir()
        (storage / corpora.FOLDER / "a.tar").write_bytes(b"x" * 7000)
        found = client.get("/v1/storage").json()
        parts = {part["name"]: part["bytes"] for part in found["parts"]}
        checkpoints = sum(f.stat().st_size for f in storage.rglob("step-*.pt"))
        assert parts["checkpoints"] == checkpoints
        assert parts["weights"] == sum(f.stat().st_size for f in storage.rglob("best-*.pt"))
        assert (parts["record"], parts["packed corpora"]) == (5600, 7000)
        assert found["total"] == sum(parts.values())
        assert {each["user"] for each in found["users"]} == {"anna", "bob"}
        assert {each["id"] for each in found["experiments"]} == {id, other}
        assert sum(each["checkpoints"] for each in found["experiments"]) == checkpoints
        page = client.get("/storage")
        assert page.status_code == 200
        assert f'href="/experiments/{other}"' in page.text
        token = Accounts(record.url).create_token("bob", "read", 3600).token
        bob = TestClient(client.app, base_url="http://localhost:8642")
        bob.headers["Authorization"] = f"Bearer {token}"
        seen = bob.get("/v1/storage").json()
        assert [each["id"] for each in seen["experiments"]] == [other]
        assert [each["user"] for each in seen["users"]] == ["bob"]
        assert {part["place"] for part in seen["parts"]} == {None}
        assert str(storage) not in bob.get("/storage").text


class TestCommands:
    @pytest.fixture
    def cli(self, client: TestClient, monkeypatch: Any) -> Callable[..., Any]:
        """The command line, whose client asks the application without a server."""
        from eigensweep.client import Client

        class Near(Client):
            def get(self, path: str, **query: Any) -> Any:
                return client.get(path, params=query).json()

            def post(self, path: str, body: Any = None, headers: Any = None) -> Any:
                return client.post(path, json=body, headers=headers).json()

        monkeypatch.setattr(frame, "Client", lambda _: Near("http://localhost:8642"))
        return lambda *words: CliRunner().invoke(command_line, words)

    def test_du_ends_with_the_parts_where_nobody_has_experiments(self, cli):
        shown = cli("du")
        assert shown.exit_code == 0
        assert shown.output.splitlines()[-1].endswith(" in all")

    def test_prune_is_confirmed_and_du_shows_it(self, cli, record, id, make):
        asked = cli("prune", "--keep", "best")
        assert asked.exit_code == 2
        assert "--dry-run" in asked.output
        told = cli("prune", "--keep", "best", "--dry-run", "--experiment", id)
        assert told.exit_code == 0
        assert f"{id} " in told.output
        assert "would free" in told.output
        assert record.row(id).kept is None
        assert cli("prune", "--keep", "best", "--yes").exit_code == 0
        make().tick()
        assert record.row(id).kept == "best"
        assert cli("prune", "--older-than", "soon", "--dry-run").exit_code == 2
        shown = cli("du")
        assert shown.exit_code == 0
        assert id in shown.output
        assert "checkpoints" in shown.output

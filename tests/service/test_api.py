"""The API over a real record, without drivers: what it takes, what it refuses, what it says."""

from __future__ import annotations

import gzip
import io
import json
import re
import threading
from math import exp
from typing import Any

import anyio
import pandas as pd
import pytest
from pydantic import SecretStr
from sqlalchemy import event
from starlette.testclient import TestClient
from waiting import wait_until

from eigensweep.models import MODELS
from eigensweep.protocol.messages import Notice, Place
from eigensweep.protocol.shares import Capacity
from eigensweep.protocol.states import ACTIONS
from eigensweep.results.trial_result import ParameterCount, ReplicateResult, Result
from eigensweep.search_spaces.checks.memory import MemoryEstimate, estimate_arms
from eigensweep.search_spaces.shipped.presets import preset_names
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service import store_probe
from eigensweep.service.api.answers.paging import encode
from eigensweep.service.api.answers.schemas import (
    ExperimentNow,
    ExperimentSummary,
    PostedExperiment,
    TrialNow,
    TrialSummary,
)
from eigensweep.service.api.app import create_app
from eigensweep.service.api.callers.callers import Caller
from eigensweep.service.api.comparison import Comparison, Effort
from eigensweep.service.api.middleware.limits import BodyLimits
from eigensweep.service.api.routes import experiments
from eigensweep.service.api.routes import trials as trial_routes
from eigensweep.service.api.routes.analyses import AnalysisNow
from eigensweep.service.api.routes.reproductions import ReproductionNow
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.sql.database import engine
from eigensweep.service.record.views import queries
from eigensweep.service.settings import Mlflow
from eigensweep.store.places import disk_space
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.tasks import TASKS
from eigensweep.tasks.copying import CopyingConfig

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}
PLACE = Place(node="here", pid=7, device="cpu")


def post_and_claim(client: TestClient, record: Any, body: Any) -> RecordLedger:
    """Post an experiment and return the ledger of its first driver."""
    id = client.post("/v1/experiments", json=body).json()["id"]
    claim = record.claim(id)
    return RecordLedger(record.url, id, claim.generation)


class TestWarmStart:
    def test_useful_earlier_trials_are_counted_and_others_refused(self, client, record, spec):
        earlier = spec()
        ledger = post_and_claim(client, record, earlier)
        read = ExperimentSpec.model_validate(earlier)
        for number, point in enumerate(read.space()):
            config = read.trial(point)
            content = config.model_dump(mode="json")
            ledger.open(number, point.arm, point.params, content, config.content_hash())
            ledger.finish(number, ledger.begin(number), "completed", Result(value=0.5, step=100))
        id = ledger.experiment_id
        space = {"optimizer.lr": {"low": 1e-3, "high": 1e-1, "log": True}}
        search = {"method": "tpe", "trials": 9, "space": space, "warm_start": [id]}

        def say(**changes: Any) -> str:
            answer = client.post("/v1/experiments", json=spec(search=search) | changes)
            assert answer.status_code == 422
            (problem,) = answer.json()["errors"]
            return f"{problem['path']}: {problem['message']}"

        assert f"experiment {id} is running; a search starts from" in say()
        ledger.open(2, point.arm, point.params, content, config.content_hash())
        ledger.finish(2, ledger.begin(2), "pruned", Result(value=0.9, step=50))
        ledger.end("completed")
        nsga2 = spec(search=search | {"method": "nsga2"})
        seen = client.post("/v1/experiments/preview", json=nsga2).json()
        assert seen["search"]["warm_start"] == {id: 2}
        seen = client.post("/v1/experiments/preview", json=spec(search=search)).json()
        assert seen["search"]["warm_start"] == {id: 3}
        adding = {"name": "adding", "length": 20, "batch_size": 4}
        assert "3 learned another task" in say(task=adding)
        assert "3 trained another number of steps" in say(
            training={"steps": 50, "evaluate_every": 10}
        )
        assert "search.warm_start.0: " in say(search=search | {"warm_start": ["0nothing"]})
        assert "grid does not learn" in say(
            search=search | {"method": "grid", "space": {"optimizer.lr": [0.1]}}
        )
        assert client.post("/v1/experiments", json=spec(search=search)).status_code == 201


class TestPost:
    def test_a_posted_experiment_is_found_where_the_answer_says(self, client, spec):
        answer = client.post("/v1/experiments", json=spec())
        assert answer.status_code == 201
        found = client.get(answer.headers["Location"]).json()
        posted = answer.json()
        assert found == {name: posted[name] for name in found}
        assert (found["state"], found["queue_place"]) == ("queued", 1)
        assert found["progress"]["total"] == 2
        assert found["metric"] == {"name": "cross_entropy", "unit": "nats", "better": "lower"}
        assert found["baseline"] == pytest.approx(2 * 2.0794415 / 9)

    def test_what_is_stored_is_again_a_spec(self, client, spec):
        stored = client.post("/v1/experiments", json=spec()).json()["spec"]
        again = client.post("/v1/experiments", json=stored)
        assert again.status_code == 201
        assert again.json()["spec"] == stored

    def test_a_repeated_post_with_one_key_queues_once(self, client, spec):
        key = {"Idempotency-Key": "k"}
        first = client.post("/v1/experiments", json=spec(), headers=key)
        second = client.post("/v1/experiments", json=spec(), headers=key)
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]
        other = client.post("/v1/experiments", json=spec(name="other"), headers=key)
        assert other.status_code == 422
        assert len(client.get("/v1/experiments").json()["items"]) == 1

    def test_a_key_of_what_is_being_deleted_is_refused_in_words(self, client, record, spec):
        key = {"Idempotency-Key": "k"}
        id = client.post("/v1/experiments", json=spec(), headers=key).json()["id"]
        record.cancel(id)
        record.delete(id)
        again = client.post("/v1/experiments", json=spec(), headers=key)
        assert again.status_code == 409
        assert f"experiment {id} was posted with this Idempotency-Key" in again.json()["detail"]

    def test_a_post_is_one_transaction_of_eight_statements(self, client, record, spec):
        statements: list[str] = []

        def trace(connection: Any, *_: Any) -> None:
            connection.set_trace_callback(statements.append)

        for _ in range(20):
            client.post("/v1/experiments", json=spec())
        event.listen(engine(record.url), "checkout", trace)
        posted = client.post("/v1/experiments", json=spec()).json()
        kinds = [statement.split(maxsplit=1)[0] for statement in statements]
        written = ["SELECT", "INSERT", "INSERT", "INSERT"]  # quotas; experiment, event, audit
        assert kinds == ["SELECT", "BEGIN", *written, "COMMIT", "SELECT"]
        assert posted["queue_place"] == 21

    def test_a_post_is_estimated_and_its_room_looked_for_once(
        self, client, launcher, spec, monkeypatch
    ):
        guesses, looked, look = [], [], launcher.look_for_room

        def estimate(parsed: ExperimentSpec) -> dict[str, MemoryEstimate]:
            guesses.append(estimate_arms(parsed))
            return guesses[-1]

        def look_for_room(resources: Any, replicates: int) -> Capacity:
            looked.append(resources.memory)
            return look(resources, replicates)

        monkeypatch.setattr(experiments, "estimate_arms", estimate)
        monkeypatch.setattr(launcher, "look_for_room", look_for_room)
        memory = client.post("/v1/experiments", json=spec()).json()["memory"]
        assert len(guesses) == 1
        assert looked == [memory["scornn"]["host_bytes"]] == [guesses[0]["scornn"].host]

    def test_a_preview_counts_and_queues_nothing(self, client, spec):
        found = client.post("/v1/experiments/preview", json=spec()).json()
        assert found["trials"] == 2
        assert client.get("/v1/experiments").json()["items"] == []

    def test_a_preview_of_an_extension_looks_at_no_source(self, client, spec):
        space = {"optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True}}
        search = {"method": "tpe", "trials": 2, "space": space, "warm_start": ["gone"]}
        path, body = "/v1/experiments/preview", spec(search=search)
        assert client.post(path, json=body).status_code == 422
        assert client.post(f"{path}?extends=true", json=body).status_code == 200

    def test_a_preview_says_how_many_trials_run_at_once(self, client, launcher, spec):
        launcher.room = Capacity(trials=5, problem=None, may_change=False)
        constructed = {"delay": 5, "symbols": 2, "hidden_size": 29}
        arms = [
            {"model": {"name": "scornn", "hidden_size": 6, "negative_ones": 2}},
            {"model": {"name": "constructed_copying", **constructed}},
        ]
        shared = {"cpus": 1, "lanes": 4}
        body = {**spec(resources=shared, arms=arms, search={"method": "grid"}), "model": None}
        found = client.post("/v1/experiments/preview", json=body).json()["side_by_side"]
        assert (found["at_once"], found["lanes"], found["warnings"]) == (2, 4, [])
        assert list(found["alone"]) == ["constructed_copying"]
        assert "nothing is trained" in found["alone"]["constructed_copying"]
        found = client.post("/v1/experiments/preview", json=spec()).json()["side_by_side"]
        assert found == {"at_once": 2, "lanes": None, "alone": {}, "warnings": []}

    def test_what_no_node_has_is_refused_unless_nodes_come_and_go(self, client, launcher, spec):
        words = "a trial needs 1 CPU, 1 GPU, and no node has that; there are 2 CPU, 0 GPU"
        launcher.room = Capacity(trials=0, problem=words, may_change=False)
        for path in ("/v1/experiments", "/v1/experiments/preview"):
            answer = client.post(path, json=spec(resources={"gpus": 1}))
            assert answer.status_code == 422
            (problem,) = answer.json()["errors"]
            assert (problem["path"], problem["message"]) == ("resources", words)
        assert client.get("/v1/experiments").json()["items"] == []
        launcher.room = Capacity(trials=0, problem=words, may_change=True)
        preview = client.post("/v1/experiments/preview", json=spec(resources={"gpus": 1})).json()
        assert preview["side_by_side"]["warnings"] == [words]
        assert client.post("/v1/experiments", json=spec(resources={"gpus": 1})).status_code == 201

    @pytest.mark.slow  # test_presets.py checks each
    def test_every_preset_can_be_posted_as_it_is_served(self, client):
        for name in preset_names():
            body = client.get(f"/v1/presets/{name}").json()["spec"]
            spec = ExperimentSpec.model_validate(body)
            answer = client.post("/v1/experiments", json=body)
            try:
                TASKS[spec.task.name].check_corpus(spec.task, None)
            except ValueError:
                (error,) = answer.json()["errors"]
                assert error["path"] == "task", name
            else:
                assert answer.status_code == 201, name


HUGE = {
    f"optimizer.{field}": {"low": 1e-6, "high": 0.1, "step": 1e-6} for field in ("lr", "lr_orth")
}
REFUSED = {
    "an unknown field": ({"serch": {}}, "serch"),
    "a parameter the model lacks": (
        {"search/space": {"model.negative_one": [1]}},
        "model.negative_one",
    ),
    "a value out of range": ({"model/hidden_size": -1}, "model.hidden_size"),
    "a value out of range in the space": (
        {"search/space": {"optimizer.lr": [0.1, -1.0]}},
        "optimizer.lr",
    ),
    "not a number": ({"optimizer": {"lr": float("nan")}}, "optimizer.lr"),
    "both of two exclusive fields": ({"model/parameters": 500}, "model"),
    "a grid of 10^10 points": ({"search/space": HUGE}, "search.space"),
    "an unknown model": ({"model/name": "scorn"}, "model.name"),
    "a corpus that is not there": ({"task": {"name": "ptb_chars"}}, "task"),
}


class TestRefusals:
    @pytest.mark.parametrize("wrong", REFUSED)
    def test_a_spec_that_could_not_run_is_refused_without_a_point(
        self, client, spec, wrong, monkeypatch
    ):
        monkeypatch.setattr(Space, "point", None)
        changes, path = REFUSED[wrong]
        body = json.dumps(spec(**changes))
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/experiments", content=body, headers=headers)
        assert answer.status_code == 422
        assert answer.headers["Content-Type"] == "application/problem+json"
        problem = answer.json()
        assert path in problem["errors"][0]["path"]
        assert problem["errors"][0]["message"]
        assert client.get("/v1/experiments").json()["items"] == []

    @pytest.mark.parametrize("path", ["/v1/experiments", "/v1/experiments/preview"])
    def test_all_mistakes_of_a_spec_are_told_in_one_answer(self, client, spec, path):
        body = {
            "task": {"name": "ptb_chars", "lenght": 3},
            "model": {"name": "scornn", "hidden_size": 32, "negative_one": 3},
            "training": {"steps": 100},
            "search": {"space": {"optimizer.lrr": [0.1, 0.2]}},
            "scheduler": {"name": "asha", "brackets": 3},
        }
        answer = client.post(path, json=body)
        assert answer.status_code == 422
        assert [each["path"] for each in answer.json()["errors"]] == [
            "task.lenght",
            "model.negative_one",
            "task",
            "search.space.optimizer.lrr",
            "scheduler.brackets",
        ]
        many = client.post(path, json=body | {f"field{i}": i for i in range(30)}).json()
        assert many["detail"].startswith("more than 20 problems")
        assert len(many["errors"]) == 21
        assert many["errors"][-1]["message"].startswith("and 15 more")

    def test_missing_nodes_and_experiments_are_told_beside_others(self, client, launcher, spec):
        launcher.room = Capacity(trials=0, problem="no node has a GPU", may_change=False)
        space = {"optimizer.lr": {"low": 1e-3, "high": 1e-1, "log": True}}
        search = {"method": "tpe", "trials": 9, "space": space, "warm_start": ["0nothing"]}
        body = spec(search=search, resources={"gpus": 1}, scheduler={"name": "asha", "brackets": 3})
        found = client.post("/v1/experiments", params={"notify": "http://a.test"}, json=body)
        assert found.status_code == 422
        assert {each["path"] for each in found.json()["errors"]} == {
            "notify",
            "scheduler.brackets",
            "resources",
            "search.warm_start.0",
        }

    def test_a_wrong_parameter_is_told_beside_a_wrong_body(self, client, spec):
        body = spec(serch={})
        found = client.post("/v1/experiments", params={"notify": ["x"] * 5}, json=body).json()
        assert [each["path"] for each in found["errors"]] == ["serch", "notify"]
        (alone,) = client.post("/v1/experiments", params={"notify": ["x"] * 5}, json=spec()).json()[
            "errors"
        ]
        assert alone["path"] == "notify"

    def test_the_body_of_another_request_is_not_taken_for_a_spec(self, client):
        found = client.post("/v1/experiments/bulk", json={"action": "stop", "ids": ["a"]}).json()
        assert [each["path"] for each in found["errors"]] == ["action"]

    def test_an_unknown_parameter_is_told_with_the_names_that_exist(self, client, spec):
        body = spec(**{"search/space": {"model.negative_one": [1]}})
        (error,) = client.post("/v1/experiments", json=body).json()["errors"]
        assert "model.negative_ones" in error["available"]
        assert "did you mean" in error["message"]

    def test_a_key_that_stands_twice_is_refused_by_its_name(self, client, spec):
        body = json.dumps(spec()).replace('"delay": 5', '"delay": 5, "delay": 6')
        answer = client.post(
            "/v1/experiments", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422
        assert answer.json()["detail"] == "the key 'delay' stands twice"
        assert client.get("/v1/experiments").json()["items"] == []

    @pytest.mark.parametrize("sent", [b"", b'{"action": "can'])
    def test_what_a_client_did_not_send_whole_is_not_done(self, sent):
        reached: list[str] = []

        async def act(scope: Any, receive: Any, send: Any) -> None:
            reached.append(scope["path"])

        pieces = [{"type": "http.request", "body": sent, "more_body": True}]

        async def receive() -> Any:
            return pieces.pop() if pieces else {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST", "path": "/v1/experiments/e1/cancel"}
        scope |= {"headers": [], "state": {"caller": Caller("operator", "admin", None, None)}}
        anyio.run(BodyLimits(act, lambda *_: "submit"), scope, receive, receive)
        assert reached == []

    @pytest.mark.parametrize("announced", [True, False])
    def test_a_body_of_ten_megabytes_is_refused_in_words(self, client, announced):
        pieces = (b"[" * 65_536 for _ in range(160))
        content: Any = b"[" * 10_485_760 if announced else pieces
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/experiments", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["Content-Type"] == "application/problem+json"

    @pytest.mark.parametrize(
        ("body", "kind", "status"),
        [
            (b"{}", "text/plain", 415),
            (b"{", "application/json", 422),
            (b"[1]", "application/json", 422),
            (b"", "application/json", 422),
            (b"[" * 100_000, "application/json", 422),
            (b"9" * 10_000, "application/json", 422),
            (b"\xff\xfe", "application/json", 422),
            (b'{"name": "\xff"}', "application/json", 422),
        ],
    )
    def test_what_is_not_a_json_object_is_refused(self, client, body, kind, status):
        headers = {"Content-Type": kind}
        answer = client.post("/v1/experiments", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["detail"]

    def test_a_compressed_body_is_refused_in_words(self, client, spec):
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        content = gzip.compress(json.dumps(spec()).encode())
        answer = client.post("/v1/experiments", content=content, headers=headers)
        assert answer.status_code == 415
        assert answer.json()["detail"] == "send the body without a Content-Encoding; got 'gzip'"

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            (b"[" * 100_000, "it is nested more than 100 deep"),
            (b'{"name":' + b"[" * 500 + b"]" * 500 + b"}", "it is nested more than 100 deep"),
            (b'{"seed": ' + b"9" * 5000 + b"}", "a whole number has at most 300 digits; got 5000"),
            (b'{"name": "\xff"}', "the body is not text in utf-8: byte 0xff at 10"),
            (b'"copying"', "the body should be an object with named fields; got 'copying'"),
            (b"null", "the body should be an object with named fields; got null"),
        ],
    )
    def test_a_body_that_is_no_spec_says_what_it_is(self, client, body, words):
        headers = {"Content-Type": "application/json"}
        answer = client.post("/v1/experiments", content=body, headers=headers)
        assert answer.json()["detail"] == words

    @pytest.mark.parametrize(
        ("query", "words"),
        [
            ("experiments?limit=0", "'limit' should be greater than or equal to 1; got '0'"),
            ("experiments?stat=running", "did you mean 'state'?"),
            ("usage?user=anna", "there is no parameter 'user' here, and no other one"),
            ("compare?of=a", "'of' should be 2 to 20 names; one alone cannot be compared"),
        ],
    )
    def test_a_wrong_parameter_is_named_with_what_works(self, client, query, words):
        answer = client.get(f"/v1/{query}")
        assert answer.status_code == 422
        assert words in answer.json()["detail"]

    @pytest.mark.parametrize(
        ("method", "path", "status", "words"),
        [
            ("GET", "/v1/experiments/none", 404, "no experiment 'none'"),
            ("GET", "/v1/experiments/none/trials", 404, "no experiment"),
            ("GET", "/v1/experiments/none/trials/1", 404, "no experiment"),
            ("GET", "/v1/experiments/none/events", 404, "no experiment"),
            ("POST", "/v1/experiments/none/cancel", 404, "no experiment"),
            ("GET", "/v1/models/none", 404, "scornn"),
            ("GET", "/v1/tasks/none", 404, "copying"),
            ("GET", "/v1/presets/enrnn/none", 404, "enrnn/"),
            ("GET", "/v1/presets/../../etc/passwd", 404, ""),
            ("GET", "/v2", 404, "/docs"),
            ("DELETE", "/v1/experiments", 405, "it takes GET, POST"),
            ("DELETE", "/v1/experiments/bulk", 405, "it takes POST"),
            ("DELETE", "/compare", 405, "it takes GET"),
            ("GET", "/v1/experiments?limit=0", 422, "limit"),
            ("GET", "/v1/experiments?state=lost", 422, "queued"),
            ("GET", "/v1/experiments?sort=color", 422, "created_at"),
            ("GET", "/v1/experiments?colour=red", 422, "colour"),
            ("GET", "/v1/experiments?cursor=x", 422, "next_cursor"),
        ],
    )
    def test_every_error_is_a_problem_that_says_what_there_is(
        self, client, method, path, status, words
    ):
        answer = client.request(method, path)
        assert answer.status_code == status, answer.text
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json()["status"] == status
        assert words in answer.text

    def test_a_database_that_is_away_is_no_bug(self, client, record, tmp_path):
        engine(record.url).dispose()
        (tmp_path / "record.db").rename(tmp_path / "moved.db")
        (tmp_path / "record.db").mkdir()
        answer = client.get("/v1/experiments")
        assert answer.status_code == 503
        assert answer.json()["title"] == "Service Unavailable"
        assert answer.headers["Retry-After"]

    def test_a_missing_table_is_told_with_what_to_run(self, client, record):
        with engine(record.url).execution_options(writes=True).begin() as connection:
            connection.exec_driver_sql("ALTER TABLE experiments RENAME TO elsewhere")
        answer = client.get("/v1/experiments")
        assert answer.status_code == 500
        assert "eigensweep serve" in answer.json()["detail"]
        check = client.get("/readyz").json()["checks"]["database"]
        assert not check["ready"]
        assert "no such table: experiments" in check["detail"]

    def test_a_bug_is_told_without_its_secrets(self, client, record, monkeypatch, caplog):
        def fail(**_: Any) -> None:
            raise ZeroDivisionError("secret")

        monkeypatch.setattr(record, "experiments", fail)
        answer = client.get("/v1/experiments")
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "ZeroDivisionError: secret" in caplog.text


class TestReading:
    def test_an_export_without_trials_has_its_columns(self, client, spec):
        here = client.post("/v1/experiments", json=spec()).json()["links"]["trials"]
        for read, name in ((pd.read_csv, "csv"), (pd.read_parquet, "parquet")):
            table = read(io.BytesIO(client.get(f"{here}.{name}").content))
            assert list(table.columns[:4]) == ["rank", "trial", "arm", "state"]
            assert table.empty

    def test_pages_follow_one_another_without_gap_or_repetition(self, client, spec):
        posted = [
            client.post("/v1/experiments", json=spec(name=f"e{i}")).json()["id"] for i in range(5)
        ]
        for sort, expected in (("created_at", posted), ("-created_at", posted[::-1])):
            seen, cursor = [], None
            while True:
                query = {"limit": 2, "sort": sort} | ({"cursor": cursor} if cursor else {})
                page = client.get("/v1/experiments", params=query).json()
                seen += [item["id"] for item in page["items"]]
                cursor = page["next_cursor"]
                if cursor is None:
                    break
            assert seen == expected

    def test_pages_lead_past_the_longest_name(self, client, spec):
        names = [letter + 119 * "😀" for letter in "abc"]
        for name in names:
            assert client.post("/v1/experiments", json=spec(name=name)).status_code == 201
        query, found = {"sort": "name", "limit": 1}, []
        while query.get("cursor", "") is not None:
            page = client.get("/v1/experiments", params=query).json()
            found += [each["name"] for each in page["items"]]
            query["cursor"] = page["next_cursor"]
        assert found == names

    def test_a_list_has_heads_and_one_experiment_has_all(self, client, record, spec):
        body = spec(description="x" * 900)
        ledger = post_and_claim(client, record, body)
        ledger.open(0, "scornn", {"optimizer.lr": 1e-3}, {"seed": 0}, "h0")
        ledger.finish(0, ledger.begin(0), "completed", Result(value=0.25, step=100))
        ledger.end("failed", "Traceback\nKeyError: 'x'")
        (listed,) = client.get("/v1/experiments").json()["items"]
        whole = client.get(listed["links"]["self"]).json()
        assert len(json.dumps(listed)) < 1_500
        assert whole["spec"]["description"] == body["description"]
        assert whole["best"]["result"]["value"] == 0.25
        assert whole["error"] == "Traceback\nKeyError: 'x'"
        assert listed["error"] == "KeyError: 'x'"
        assert set(whole) - set(listed) == {"spec", "reused_from"}
        assert listed["best"] == {name: whole["best"][name] for name in listed["best"]}
        assert listed["best"]["value"] == 0.25
        assert listed["links"].items() <= whole["links"].items()
        assert "cancel" in whole["links"].keys() - listed["links"].keys()
        changing = {"spec", "best", "error", "eta_seconds", "links"}
        assert all(listed[name] == whole[name] for name in set(listed) - changing)
        assert client.get(whole["links"]["page"]).status_code == 200

    def test_a_made_up_cursor_is_refused_even_if_its_types_fit(self, client, spec):
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        half, huge = "\ud800", 10**30
        for path, sort, key in (
            ("/v1/experiments", "-created_at", [1.0, half]),
            ("/v1/experiments", "name", [half, "x"]),
            ("/", "-created_at", [1.0, half]),
            (f"/v1/experiments/{id}/trials", "number", [huge]),
            (f"/v1/experiments/{id}/trials", "value", [0.5, -huge]),
            (f"/experiments/{id}/trials", "value", [0.5, huge]),
        ):
            query = {"cursor": encode(sort, key)} | ({"sort": sort} if path != "/" else {})
            answer = client.get(path, params=query)
            assert (answer.status_code, "next_cursor" in answer.text) == (422, True), path

    def test_a_list_is_filtered_by_state_project_and_name(self, client, spec):
        one = client.post("/v1/experiments", json=spec(name="The One", project="p")).json()["id"]
        other = client.post("/v1/experiments", json=spec(name="other")).json()["id"]
        client.post(f"/v1/experiments/{other}/cancel")
        for query in ("state=queued&state=running", "project=p", "name=the%20one"):
            items = client.get(f"/v1/experiments?{query}").json()["items"]
            assert [item["id"] for item in items] == [one], query

    @pytest.mark.parametrize(
        ("tags", "path", "words"),
        [
            ({"mlflow.user": "anna"}, "tags", "tags of MLflow and of this service have such names"),
            ({"a=b": "c"}, "tags", "begins with a letter or a digit"),
            ({"year": 2026}, "tags.year", "string"),
            ({str(number): "" for number in range(21)}, "tags", "20"),
        ],
    )
    def test_tags_that_cannot_be_are_refused_in_words(self, client, spec, tags, path, words):
        answer = client.post("/v1/experiments", json=spec(tags=tags))
        assert answer.status_code == 422
        (problem,) = answer.json()["errors"]
        assert problem["path"].startswith(path)
        assert words in str(problem)

    def test_a_name_is_found_in_any_case(self, client, spec):
        one = client.post("/v1/experiments", json=spec(name="Größe ÄHNLICH")).json()["id"]
        for name in ("ähnlich", "GRÖßE", "Größe"):
            items = client.get("/v1/experiments", params={"name": name}).json()["items"]
            assert [item["id"] for item in items] == [one], name

    @pytest.mark.parametrize(
        "part", ["name=%00", "name=The%00", "project=%00", "owner=%00", "tag=a=%00"]
    )
    def test_a_filter_with_the_character_0_finds_nothing(self, client, spec, part):
        client.post("/v1/experiments", json=spec(name="The One"))
        assert client.get(f"/v1/experiments?{part}").json()["items"] == []

    def test_an_unknown_state_is_one_problem_that_lists_all(self, client, spec):
        queued = client.post("/v1/experiments", json=spec()).json()["id"]
        for path in ("/v1/experiments", f"/v1/experiments/{queued}/trials"):
            [problem] = client.get(path, params={"state": "lost"}).json()["errors"]
            assert problem["path"] == "state.0"
            assert "'running'" in problem["expected"]
            assert "'completed'" in problem["expected"]

    def test_a_filter_that_no_name_could_match_is_refused(self, client):
        for field in ("name", "project"):
            answer = client.get("/v1/experiments", params={field: "x" * 60_000})
            assert answer.status_code == 422
            assert "120" in answer.json()["detail"]

    def test_trials_come_ranked_with_their_history_and_links(
        self, settings, record, dispatcher, spec
    ):
        app = create_app(
            settings, record, dispatcher, Mlflow("http://127.0.0.1:5000", "http://127.0.0.1:5000")
        )
        client = TestClient(app)
        ledger = post_and_claim(client, record, spec())
        ledger.set_run("parent", "7")
        for number, value in enumerate((0.5, 0.3)):
            ledger.open(number, "scornn", {"optimizer.lr": value}, CONFIG, f"h{number}")
            attempt = ledger.begin(number)
            ledger.report(number, attempt, 50, {"valid/cross_entropy": value}, PLACE)
            ledger.set_delivered({number: f"run{number}"}, "7", [])
            result = Result(
                by_replicate=tuple(
                    ReplicateResult(seed=seed, value=value, test={"cross_entropy": seed * value})
                    for seed in (1, 2, 3)
                ),
                value=value,
                step=100,
                best_step=90,
                valid={"cross_entropy": value},
                test={"cross_entropy": 2 * value},
                parameters=ParameterCount(free=90, stored=99),
                seconds=1.5,
            )
            ledger.finish(number, attempt, "completed", result)
        ledger.open(2, "scornn", {}, CONFIG, "h2")
        ledger.finish(2, ledger.begin(2), "failed", None, "Traceback ...\nKeyError: 'x'")
        here = f"/v1/experiments/{ledger.experiment_id}"
        ranked = client.get(f"{here}/trials?sort=value").json()["items"]
        assert [trial["number"] for trial in ranked] == [1, 0, 2]
        pages = client.get(f"{here}/trials?sort=value&limit=1").json()
        after = client.get(f"{here}/trials?sort=value&limit=1&cursor={pages['next_cursor']}").json()
        assert [trial["number"] for trial in after["items"]] == [0]
        failed = client.get(f"{here}/trials?state=failed").json()["items"]
        assert failed[0]["error"].endswith("KeyError: 'x'")
        best = client.get(ranked[0]["links"]["self"]).json()
        assert best == client.get(here).json()["best"]
        assert (best["value"], best["best_step"], best["step"]) == (0.3, 90, 100)
        assert best["test"] == {"cross_entropy": 0.6}
        found = best["statistics"]["test/cross_entropy"]
        factor = exp(4.302653 * 0.3 / 3**0.5 / 0.6)  # by the logarithm, as a loss is positive
        assert list(found.values()) == pytest.approx([0.6, 3, 0.3, 0.6 / factor, 0.6 * factor])
        assert best["statistics"]["value"]["n"] == 3
        table = pd.read_csv(io.StringIO(client.get(f"{here}/trials.csv").text), index_col="trial")
        assert table.loc[1, "test/cross_entropy/sd"] == pytest.approx(0.3)
        assert (table.loc[0, "n"], table.loc[0, "low"]) == (3, 0.5)
        assert best["config"] == CONFIG
        assert best["reports"][0]["metrics"] == {"valid/cross_entropy": 0.3}
        assert best["attempts"][0]["device"] == "cpu"
        runs = "http://127.0.0.1:5000/#/experiments/7/runs"
        training = "?workflowType=machine_learning"
        assert best["links"]["mlflow"] == f"{runs}/run1{training}"
        links = client.get(here).json()["links"]
        assert links["run"] == f"{runs}/parent{training}"
        chart = f"&compareRunsMode=CHART&viewStateShareKey={ledger.experiment_id}"
        assert links["mlflow"] == f"{runs}{training}{chart}"

    def test_an_export_has_each_trial_though_one_moves_up(self, client, record, spec, monkeypatch):
        monkeypatch.setattr(trial_routes, "EXPORTED_AT_ONCE", 2)
        ledger = post_and_claim(client, record, spec())
        for number in range(6):
            ledger.open(number, "scornn", {"optimizer.lr": 1.0 + number}, CONFIG, f"h{number}")
        for number in range(4):
            ledger.finish(number, ledger.begin(number), "completed", Result(value=1.0 + number))
        walk = queries.Queries.listed_trials

        def end_one(self: Any, id: str, **chosen: Any) -> Any:
            page = walk(self, id, **chosen)
            if record.trial(id, 5).trial.state == "waiting":
                ledger.finish(5, ledger.begin(5), "completed", Result(value=0.5))
            return page

        monkeypatch.setattr(queries.Queries, "listed_trials", end_one)
        text = client.get(f"/v1/experiments/{ledger.experiment_id}/trials.csv").text
        assert list(pd.read_csv(io.StringIO(text))["trial"]) == [0, 1, 2, 3, 4, 5]

    def test_a_page_offers_to_deliver_again_what_was(self, settings, record, dispatcher, spec):
        here = Mlflow("http://127.0.0.1:5000", "http://127.0.0.1:5000")
        client = TestClient(create_app(settings, record, dispatcher, here))
        ledger = post_and_claim(client, record, spec())
        ledger.set_run("parent", "7")
        button = f'data-post="/v1/experiments/{ledger.experiment_id}/deliver"'

        def is_offered() -> bool:
            return button in client.get(f"/experiments/{ledger.experiment_id}").text

        assert not is_offered()
        ledger.end("completed")
        assert not is_offered(), "it is on its way"
        ledger.set_tracked()
        assert is_offered()

    def test_pages_lead_to_mlflow_by_the_address_they_came_by(
        self, settings, record, dispatcher, spec
    ):
        own = "http://127.0.0.1:8642"
        here = Mlflow("http://127.0.0.1:5000", f"{own}/mlflow", "theirs", service=own)
        client = TestClient(create_app(settings, record, dispatcher, here))
        ledger = post_and_claim(client, record, spec())
        ledger.set_run("parent", "7")
        ledger.open(0, "scornn", {}, CONFIG, "h")
        ledger.set_delivered({0: "run0"}, "7", ())
        page = f"/experiments/{ledger.experiment_id}"
        assert client.get(f"/v1{page}").json()["links"]["mlflow"].startswith(f"{own}/mlflow/#/")
        for place, start in (
            ("/", '"/mlflow"'),
            (page, '"/mlflow/#/'),
            (f"{page}/trials/0", '"/mlflow/#/'),
        ):
            text = client.get(place).text
            assert f"href={start}" in text, place
            assert own not in text, place

    def test_the_catalogue_describes_every_model_and_task(self, client):
        for kind, registry in (("models", MODELS), ("tasks", TASKS)):
            listed = client.get(f"/v1/{kind}").json()["items"]
            assert {item["name"] for item in listed} == set(registry)
            for item in listed:
                entry = client.get(f"/v1/{kind}/{item['name']}").json()
                assert set(entry["schema"]["properties"]) == set(
                    registry[item["name"]].Config.model_fields
                )
        copying = client.get("/v1/tasks/copying").json()
        assert copying["baseline"] == pytest.approx(10 * 2.0794415 / 2020)
        assert copying["metrics"][0]["name"] == "cross_entropy"
        assert "Helfrich" in client.get("/v1/models/scornn").json()["source"]

    def test_a_task_whose_code_raises_hides_no_other(self, client, monkeypatch):
        monkeypatch.setattr(CopyingConfig, "baselines", property(lambda config: 1 / 0))
        listed = {each["name"]: each for each in client.get("/v1/tasks").json()["items"]}
        assert listed["copying"]["baseline"] is None
        assert listed["adding"]["baseline"] is not None
        assert client.get("/v1/tasks/copying").json()["metrics"] == []

    def test_every_route_is_documented(self, client):
        page = client.get("/openapi.json").json()
        for path, methods in page["paths"].items():
            for method, route in methods.items():
                assert route["summary"], (method, path)
                ok = next(content for code, content in route["responses"].items() if code < "300")
                assert ok["content"], (method, path)
        assert "HTTPValidationError" not in page["components"]["schemas"]  # problems, all of them

    def test_every_action_has_an_address_that_may_refuse(self, client):
        paths = client.get("/openapi.json").json()["paths"]
        for action in ACTIONS:
            route = paths[f"/v1/experiments/{{id}}/{action}"]["post"]
            assert {"202", "400", "404", "409", "413", "415", "422"} <= route["responses"].keys()
            assert route["operationId"].startswith(f"{action}_experiment_")

    def test_the_examples_of_the_documentation_are_true(self, client):
        page = client.get("/openapi.json").json()
        examples = page["paths"]["/v1/experiments"]["post"]["requestBody"]["content"]
        for example in examples["application/json"]["examples"].values():
            assert client.post("/v1/experiments", json=example["value"]).status_code == 201
        for answer in (
            *(PostedExperiment, ExperimentNow, ExperimentSummary, TrialNow, TrialSummary),
            *(AnalysisNow, ReproductionNow, Comparison, Effort),
        ):
            [example] = page["components"]["schemas"][answer.__name__]["examples"]
            assert answer.model_validate(example).model_dump(mode="json") == example

    def test_health_names_what_is_missing(self, client, dispatcher):
        assert client.get("/healthz").json() == {"status": "alive"}
        assert client.get("/readyz").json()["ready"] is True
        dispatcher.problem = "Ray is starting"
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["checks"]["launcher"] == {
            "ready": False,
            "detail": "Ray is starting",
            "url": None,
        }

    def test_readiness_names_an_experiment_that_cannot_be_started(
        self, client, dispatcher, launcher, spec, monkeypatch
    ):
        broken, other = (client.post("/v1/experiments", json=spec()).json()["id"] for _ in range(2))
        launch = launcher.launch

        def launch_or_fail(id: str, *rest: Any) -> Any:
            if id == broken:
                raise ConnectionError("its node does not answer")
            return launch(id, *rest)

        monkeypatch.setattr(launcher, "launch", launch_or_fail)
        dispatcher.tick()
        answer = client.get("/readyz")
        assert answer.status_code == 200
        detail = answer.json()["checks"]["launcher"]["detail"]
        assert f"experiment {broken} is tried again: ConnectionError: its node" in detail
        assert other not in detail

    def test_the_service_is_ready_and_names_a_broken_package(self, client, monkeypatch):
        assert client.get("/readyz").json()["checks"]["packages"]["detail"] == ""
        problem = ("toy", "ImportError: No module named 'lab'")
        monkeypatch.setitem(MODELS._problems, "toy = lab:Toy (lab 1.0)", problem)
        answer = client.get("/readyz")
        assert answer.status_code == 200
        assert (
            "toy = lab:Toy (lab 1.0) was left out: ImportError"
            in (answer.json()["checks"]["packages"]["detail"])
        )

    def test_without_space_it_is_not_ready_and_says_where(self, client, record, spec, monkeypatch):
        assert client.get("/readyz").json()["checks"]["disk"] == {
            "ready": True,
            "detail": "",
            "url": None,
        }
        monkeypatch.setattr(disk_space, "measure_free", lambda folder: 10**6)
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert "has 1 MB free" in answer.json()["checks"]["disk"]["detail"]

    def test_a_store_that_fails_or_hangs_makes_it_unready_soon(self, client, monkeypatch):
        monkeypatch.setattr(store_probe, "FRESH_SECONDS", 0.0)
        monkeypatch.setattr(store_probe, "PATIENCE_SECONDS", 0.2)
        store = client.app.state.service.store.store
        assert client.get("/readyz").json()["checks"]["store"]["ready"]
        back = threading.Event()

        def fail(path: str) -> None:
            raise StoreAwayError("cannot list s3://lab/x: connection refused")

        def hang(path: str) -> None:
            back.wait(60)

        for act, words in ((fail, "connection refused"), (hang, "has not answered since 2")):
            monkeypatch.setattr(store.files, "size", act)
            client.get("/readyz")  # what the look before this one has found may be told yet
            answer = client.get("/readyz")
            assert answer.status_code == 503
            assert words in answer.json()["checks"]["store"]["detail"]
        back.set()
        wait_until(lambda: client.get("/readyz").status_code == 200, lambda: "not ready")

    def test_lists_and_pages_say_what_an_experiment_waits_for(self, client, record, spec):
        ledger = post_and_claim(client, record, spec())
        low = Notice("disk", "new trials wait: the disk is nearly full")
        ledger.record_notices(
            [low, Notice("node", "a node is left out: no corpus", "node7", 1.5e9)]
        )
        here = f"/v1/experiments/{ledger.experiment_id}"
        nobody: dict[str, Any] = {"node": None, "until": None}
        left_out = {"node": "node7", "until": "2017-07-14T02:40:00Z"}
        told = [
            {"kind": "disk", "words": low.words, **nobody},
            {"kind": "node", "words": "a node is left out: no corpus", **left_out},
        ]
        assert client.get(here).json()["notices"] == told
        assert client.get("/v1/experiments").json()["items"][0]["notices"] == told
        page = client.get(f"/experiments/{ledger.experiment_id}").text
        assert "new trials wait: the disk is nearly full" in page
        assert "a node is left out: no corpus" in page

    def test_readiness_needs_mlflow(self, settings, record, dispatcher, free_port):
        uri = f"http://127.0.0.1:{free_port()}"
        client = TestClient(create_app(settings, record, dispatcher, Mlflow(uri, uri)))
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert not answer.json()["checks"]["mlflow"]["ready"]
        assert answer.json()["checks"]["database"]["ready"]


class TestDocs:
    def test_the_page_needs_nothing_from_the_internet(self, client):
        html = client.get("/docs").text
        files = re.findall(r'<(?:link|script)[^>]* (?:src|href)="([^"]+)"', html)
        assert any(name.endswith(".js") for name in files)
        for name in files:
            assert name.startswith("/"), name
            assert client.get(name).status_code == 200


class TestCancel:
    def test_a_queued_experiment_is_cancelled_at_once(self, client, spec):
        here = client.post("/v1/experiments", json=spec()).json()["links"]["cancel"]
        answer = client.post(here, json={})
        assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
        assert client.post(here).status_code == 202

    def test_the_driver_of_a_running_one_is_asked_to_stop(self, client, record, spec):
        ledger = post_and_claim(client, record, spec())
        answer = client.post(f"/v1/experiments/{ledger.experiment_id}/cancel")
        assert answer.json()["state"] == "cancelling"
        assert answer.json()["cancel_requested"]
        assert ledger.intent() == "cancel"

    def test_what_is_over_cannot_be_cancelled(self, client, record, spec):
        ledger = post_and_claim(client, record, spec())
        ledger.end("completed")
        answer = client.post(f"/v1/experiments/{ledger.experiment_id}/cancel")
        assert answer.status_code == 409


class TestAccess:
    @pytest.fixture
    def guarded_client(self, settings, record, dispatcher) -> TestClient:
        token = settings.model_copy(update={"token": SecretStr("secret")})
        return TestClient(create_app(token, record, dispatcher))

    @pytest.mark.parametrize("header", [None, "Bearer wrong", "secret", "Basic secret"])
    def test_without_the_token_nothing_is_told(self, guarded_client, spec, header):
        headers = {"Authorization": header} if header else {}
        for method, path in (
            ("GET", "/v1/experiments"),
            ("POST", "/v1/experiments"),
            ("GET", "/v1/x"),
        ):
            answer = guarded_client.request(method, path, headers=headers)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert answer.headers["Content-Type"] == "application/problem+json"

    def test_with_the_token_everything_is(self, guarded_client, spec):
        headers = {"Authorization": "Bearer secret"}
        assert (
            guarded_client.post("/v1/experiments", json=spec(), headers=headers).status_code == 201
        )
        assert guarded_client.get("/healthz").status_code == 200

    def test_another_site_cannot_reach_a_service_without_token(self, client):
        answer = client.get("/v1/experiments", headers={"Host": "evil.example:8642"})
        assert answer.status_code == 403
        assert client.get("/v1/experiments", headers={"Host": "localhost:8642"}).status_code == 200

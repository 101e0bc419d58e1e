"""What users may do in MLflow: all of its requests, and an attacker's list, really tried."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from mlflow import MlflowClient
from starlette.testclient import TestClient

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.api.mlflow.mlflow_proxy import MlflowProxy
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.settings import Mlflow, Settings
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.workers.tracking.mlflow_runs import RunContent, Runs

API = "/mlflow/api/2.0/mlflow"
READ_WITH_A_BODY = {
    "/graphql",
    *(f"/{kind}/search" for kind in ("experiments", "runs", "logged-models")),
    *(f"/{kind}/search" for kind in ("traces", "datasets", "issues")),
    "/experiments/search-datasets",
    *("/traces/metrics", "/traces/batchGetInfos", "/traces/calculate-filter-correlation"),
}
OF_ONES_OWN = {
    *("/runs/set-tag", "/runs/delete-tag", "/runs/update"),
    *("/experiments/set-experiment-tag", "/experiments/delete-experiment-tag"),
}
OF_ADMINS = {
    *("/runs/delete", "/runs/restore"),
    *("/experiments/update", "/experiments/delete", "/experiments/restore"),
}


def list_requests() -> Iterator[tuple[str, str]]:
    """Yield method and path of all that the installed MLflow answers, but its reads by GET."""
    from mlflow.server import app as flask
    from mlflow.server.fastapi_app import app as fastapi

    for rule in flask.url_map.iter_rules():
        for method in sorted((rule.methods or set()) - {"GET", "HEAD", "OPTIONS"}):
            yield method, re.sub(r"<[^>]+>", "0", rule.rule)
    for route in iter_route_contexts(fastapi.routes):
        for method in sorted((route.methods or set()) - {"GET", "HEAD", "OPTIONS"}):
            yield method, re.sub(r"\{[^}]+\}", "0", route.path or "")


Ask = Callable[[str], TestClient]


@pytest.fixture
def make_ask(
    settings: Settings, record: Record, dispatcher: Dispatcher
) -> Iterator[Callable[[Mlflow], Ask]]:
    """Returns, for an MLflow, who asks it through the service in the name of a user."""
    opened: list[tuple[TestClient, MlflowProxy]] = []

    def make(mlflow: Mlflow) -> Ask:
        app = create_app(settings, record, dispatcher, mlflow)
        accounts = Accounts(record.url)
        proxy = next(r.app for r in app.routes if isinstance(getattr(r, "app", None), MlflowProxy))
        opened.append((TestClient(app).__enter__(), proxy))
        portal = opened[-1][0].portal  # one event loop for all users, as in the service

        def ask(user: str) -> TestClient:
            scope: Any = {"root": "admin", "reader": "read"}.get(user, "submit")
            token = accounts.create_token(user, scope, None).token
            header = {"Authorization": f"Bearer {token}"}
            client = TestClient(app, "http://localhost:8642", headers=header)
            client.portal = portal
            return client

        return ask

    yield make
    for client, proxy in opened:
        client.portal.call(proxy._client.aclose)
        client.__exit__(None, None, None)


@pytest.mark.filterwarnings("ignore:starlette.middleware.wsgi")
@pytest.mark.parametrize(
    ("user", "allowed"),
    [
        pytest.param("reader", READ_WITH_A_BODY, marks=pytest.mark.slow),
        ("alice", READ_WITH_A_BODY | OF_ONES_OWN),
        pytest.param("root", READ_WITH_A_BODY | OF_ONES_OWN | OF_ADMINS, marks=pytest.mark.slow),
    ],
    ids=["reader", "alice", "root"],
)
def test_only_names_notes_and_tags_may_be_changed_in_mlflow(make_ask, user, allowed):
    client = make_ask(Mlflow("http://127.0.0.1:9", "/mlflow", "the secret"))(user)
    passed = set[str]()
    for method, path in {*list_requests(), ("POST", "/api/2.0/eigensweep/runs")}:
        answer = client.request(method, f"/mlflow{path}", json={})
        assert answer.status_code in (403, 422, 503), (method, path, answer.text)
        if answer.status_code != 403:
            passed.add(re.sub(r"^/(ajax-)?api/\d\.0/mlflow", "", path))
    assert passed == allowed


def test_a_missing_scope_is_refused_as_mlflow_shows_it(make_ask):
    reader = make_ask(Mlflow("http://127.0.0.1:9", "/mlflow", "the secret"))("reader")
    told = reader.post("/mlflow/ajax-api/2.0/mlflow/runs/set-tag", json={}).json()
    assert told["error_code"] == "PERMISSION_DENIED"
    assert told["message"] == told["detail"]
    assert told["type"] == "urn:eigensweep:problem:scope-too-small"


def test_nothing_is_handed_on_that_only_looks_like_a_read(make_ask):
    client = make_ask(Mlflow("http://127.0.0.1:9", "/mlflow", "the secret"))("root")
    for method, path in (
        ("POST", "/api/2.0/mlflow/runs/search/../create"),
        ("POST", "/api/2.0/mlflow/runs/create%2Fsearch"),
        ("POST", "/api/2.0/mlflow/runs//search"),
        ("POST", "//api/2.0/mlflow/runs/create"),
        ("POST", "/gateway/proxy/x/search"),
        ("GET", "/ajax-api/3.0/jobs/1"),
        ("GET", "/ajax-api/3.0/mlflow/assistant/config"),
        ("GET", "/ajax-api/2.0/mlflow/gateway-proxy-2"),
        ("GET", "/api/2.0/mlflow/users/current"),
        ("TRACE", "/"),
    ):
        assert client.request(method, f"/mlflow{path}").status_code == 403, (method, path)
    assert client.get("/mlflow/ajax-api/2.0/mlflow/gateway-proxy").json() == {"endpoints": []}


class House:
    """Alice and Bob have an experiment each in one project, and Alice one in a project alone."""

    def __init__(self, server: MlflowServer, record: Record, ask: Ask, spec: Any, name: str):
        self.record, self.server = record, server
        self.mlflow = MlflowClient(server.url)
        self.run, self.project, self.trial = {}, {}, {}
        for who, owner, project in (
            ("alice", "alice", f"{name} both"),
            ("bob", "bob", f"{name} both"),
            ("alone", "alice", f"{name} alone"),
        ):
            body = ExperimentSpec.model_validate(spec(project=project, seed=len(self.run)))
            id = record.add(body, owner=owner)[0].id
            claim = record.claim(id)
            assert claim is not None
            runs = Runs(server.url, project, id)
            self.run[who] = parent = runs.get(None, None, "an experiment", {})
            self.trial[who] = runs.get(0, None, "a trial", {}, parent)
            runs.send(self.trial[who], RunContent([CurvePoint(1, {"loss": 0.5}, 1000)]))
            runs.keep_text(self.trial[who], "{}", "config.json")
            runs.end(self.trial[who], "FINISHED")
            assert runs.flush() == {}
            self.project[who] = runs.project_id
            RecordLedger(record.url, id, claim.generation).set_run(parent, runs.project_id)
        self.as_user = {user: ask(user) for user in ("alice", "reader", "root")}

    def send(self, user: str, name: str, /, **body: Any) -> Any:
        return self.as_user[user].post(f"{API}/{name}", json=body)

    def tell(self) -> Any:
        """Return all that MLflow holds of Bob's trial, and the names of projects."""
        run = self.mlflow.get_run(self.trial["bob"])
        history = self.mlflow.get_metric_history(self.trial["bob"], "loss")
        files = [each.path for each in self.mlflow.list_artifacts(self.trial["bob"])]
        projects = [(e.name, e.tags) for e in self.mlflow.search_experiments()]
        return run.to_dictionary(), [dict(each) for each in history], files, projects


@pytest.fixture
def house(mlflow_server, record, make_ask, spec, request, monkeypatch) -> House:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", mlflow_server.token)
    ask = make_ask(Mlflow(mlflow_server.url, "/mlflow", mlflow_server.token))
    return House(mlflow_server, record, ask, spec, request.node.name)


def test_nobody_says_where_drivers_write(house, tmp_path):
    for user in ("alice", "root"):
        answer = house.send(
            user, "experiments/create", name="inhome", artifact_location=f"file://{tmp_path}/evil"
        )
        assert answer.status_code == 403
        assert "eigensweep" in answer.json()["message"]
    assert house.mlflow.get_experiment_by_name("inhome") is None


def test_what_is_of_another_stays_as_it_is(house):
    bobs, project, before = house.trial["bob"], house.project["bob"], house.tell()
    metric = {"key": "loss", "value": 0.0, "timestamp": 1000, "step": 1}
    forged = [{"key": "eigensweep.experiment", "value": "e"}, {"key": "x", "value": "y"}]
    for name, body in (
        ("runs/log-metric", {"run_id": bobs, **metric}),
        ("runs/log-batch", {"run_id": bobs, "metrics": [metric]}),
        ("runs/update", {"run_id": bobs, "status": "RUNNING"}),
        ("runs/update", {"run_id": bobs, "run_name": "mine"}),
        ("runs/set-tag", {"run_id": bobs, "key": "team", "value": "mine"}),
        ("runs/set-tag", {"run_uuid": bobs, "key": "mlflow.note.content", "value": "mine"}),
        ("runs/delete-tag", {"run_id": bobs, "key": "eigensweep.trial"}),
        ("runs/create", {"experiment_id": project, "start_time": 1, "tags": forged}),
        ("runs/delete", {"run_id": bobs}),
        ("experiments/update", {"experiment_id": project, "new_name": "torn"}),
        ("experiments/delete", {"experiment_id": project}),
        ("experiments/set-experiment-tag", {"experiment_id": project, "key": "a", "value": "b"}),
    ):
        answer = house.send("alice", name, **body)
        assert answer.status_code == 403, (name, answer.text)
        assert answer.json()["message"] == answer.json()["detail"]
    files = f"mlflow/api/2.0/mlflow-artifacts/artifacts/{project}/{bobs}/artifacts/config.json"
    assert house.as_user["alice"].put(f"/{files}", json={}).status_code == 403
    assert house.as_user["alice"].delete(f"/{files}").status_code == 403
    assert house.tell() == before


def test_names_notes_and_tags_of_ones_own_can_be_changed(house):
    for run in (house.run["alice"], house.trial["alice"]):
        for key in ("team", "mlflow.note.content"):
            sent = house.send("alice", "runs/set-tag", run_uuid=run, key=key, value="new")
            assert sent.status_code == 200, sent.text
        assert house.send("alice", "runs/update", run_id=run, run_name="n").status_code == 200
        found = house.mlflow.get_run(run)
        assert (found.data.tags["team"], found.info.run_name) == ("new", "n")
        assert found.data.tags["mlflow.note.content"] == "new"
        assert house.send("alice", "runs/delete-tag", run_id=run, key="team").status_code == 200
        assert "team" not in house.mlflow.get_run(run).data.tags
    alone = {"experiment_id": house.project["alone"], "key": "mlflow.note.content", "value": "a"}
    assert house.send("alice", "experiments/set-experiment-tag", **alone).status_code == 200
    project = house.mlflow.get_experiment(house.project["alone"])
    assert project.tags["mlflow.note.content"] == "a"


def test_of_ones_own_run_nothing_else_can_be_changed(house):
    run = house.trial["alice"]
    for name, body in (
        ("runs/update", {"run_name": "n", "status": "RUNNING"}),
        ("runs/update", {"run_name": "n", "runId": house.trial["bob"]}),
        ("runs/set-tag", {"key": "eigensweep.experiment", "value": "another"}),
        ("runs/set-tag", {"key": "Eigensweep.trial", "value": "x"}),
        ("runs/set-tag", {"key": "mlflow.parentRunId", "value": house.run["bob"]}),
        ("runs/delete-tag", {"key": "eigensweep.trial"}),
    ):
        for user in ("alice", "root"):
            answer = house.send(user, name, run_id=run, **body)
            assert answer.status_code == 403, (name, answer.text)
    assert house.mlflow.get_run(run).info.status == "FINISHED"


def test_a_body_that_mlflow_would_read_otherwise_is_refused(house):
    mine, bobs = house.trial["alice"], house.trial["bob"]
    client, before = house.as_user["alice"], house.tell()
    text = f'{{"run_id": "{mine}", "run_id": "{bobs}", "key": "a", "value": "b"}}'
    json_kind = {"Content-Type": "application/json"}
    double = client.post(f"{API}/runs/set-tag", content=text, headers=json_kind)
    assert double.status_code == 422
    form = client.post(f"{API}/runs/set-tag", data={"run_id": mine, "key": "a", "value": "b"})
    assert form.status_code == 415
    surrogate = r'{"run_id": "\ud800", "key": "a", "value": "b"}'
    for wrong in ("[]", '"text"', "{", '{"run_id": 1, "key": "a", "value": "b"}', surrogate):
        answer = client.post(f"{API}/runs/set-tag", content=wrong, headers=json_kind)
        assert answer.status_code == 422, wrong
    large = client.post(f"{API}/runs/search", json={"filter": "x" * 2**20})
    assert large.status_code == 413
    assert house.tell() == before


def test_an_admin_deletes_and_restores_runs_and_names_projects(house):
    run, project = house.trial["bob"], house.project["bob"]
    assert house.send("root", "runs/delete", run_id=run).status_code == 200
    assert house.mlflow.get_run(run).info.lifecycle_stage == "deleted"
    assert house.send("root", "runs/restore", run_id=run).status_code == 200
    renamed = house.send("root", "experiments/update", experiment_id=project, new_name="by root")
    assert renamed.status_code == 200
    assert house.mlflow.get_experiment(project).name == "by root"
    assert house.send("root", "runs/set-tag", run_id=run, key="a", value="b").status_code == 200


def test_a_run_that_is_of_nobody_here_is_nobodys_own(house):
    run = house.mlflow.create_run("0").info.run_id
    for missing in (run, "a" * 32):
        answer = house.send("alice", "runs/set-tag", run_id=missing, key="a", value="b")
        assert answer.status_code == 403
        assert "of no experiment of this service" in answer.json()["detail"]


def test_who_may_read_reads_everything(house):
    run, project = house.trial["bob"], house.project["bob"]
    reader = house.as_user["reader"]
    found = house.send("reader", "runs/search", experiment_ids=[project]).json()
    assert run in {each["info"]["run_id"] for each in found["runs"]}
    wanted = "mlflowGetRun(input: $data) {run {info {status}}}"
    query = f"query GetRun($data: MlflowGetRunInput!) {{{wanted}}}"
    body = {"operationName": "GetRun", "query": query, "variables": {"data": {"runId": run}}}
    shown = reader.post("/mlflow/graphql", json=body).json()
    assert shown["data"]["mlflowGetRun"]["run"]["info"]["status"] == "FINISHED"
    history = reader.get(f"{API}/metrics/get-history?run_id={run}&metric_key=loss").json()
    assert history["metrics"][0]["value"] == 0.5
    text = reader.get(f"/mlflow/get-artifact?path=config.json&run_uuid={run}")
    assert (text.status_code, text.text) == (200, "{}")
    assert "<html" in reader.get("/mlflow/").text
    assert reader.get("/mlflow/version").status_code == 200


def test_a_change_by_graphql_is_refused(house):
    changing = 'mutation { testMutation(inputString: "x") { output } }'
    for body in ({"query": changing}, {"query": f"query A {{ test {{ output }} }} {changing}"}):
        answer = house.as_user["root"].post("/mlflow/graphql", json=body)
        assert answer.status_code == 403
        assert "changes something" in answer.json()["detail"]


def test_the_audit_log_has_changes_in_mlflow_and_refusals(house):
    run = house.trial["alice"]
    house.send("alice", "runs/set-tag", run_id=run, key="team", value="x")
    house.send("alice", "runs/log-metric", run_id=run, key="loss", value=1)
    log = house.as_user["root"].get("/v1/audit").json()["items"]
    deed = next(each for each in log if "set-tag" in each["action"])
    assert (deed["user"], deed["detail"]) == ("alice", f"run_id {run} 'team'")

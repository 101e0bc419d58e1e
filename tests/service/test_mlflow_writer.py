"""Many runs of MLflow in one request: a real server, started as the service starts it."""

from __future__ import annotations

import errno
import json
import os
import socket
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.process.mlflow_writer import Writer
from eigensweep.store.commits.curves import CurvePoint
from eigensweep.workers.tracking import run_writes
from eigensweep.workers.tracking.mlflow_runs import (
    ERROR,
    OUTCOME,
    AwayError,
    MlflowRefusedError,
    RunContent,
    Runs,
)
from eigensweep.workers.tracking.run_writes import PATH, RunWrite, next_request

POINTS = [
    CurvePoint(1, {"valid/loss": 0.5, "rate": 0.1}, 1000),
    CurvePoint(2, {"valid/loss": 0.25}, 2000),
    CurvePoint(2, {"valid/loss": 0.25}, 2000),
]


@pytest.fixture(scope="module")
def server(mlflow_server: MlflowServer) -> MlflowServer:
    return mlflow_server


@pytest.fixture
def client(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> MlflowClient:
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", server.token)
    return MlflowClient(server.url)


Connect = Callable[..., Runs]


@pytest.fixture
def connect(server: MlflowServer, client: MlflowClient) -> Connect:
    def connect(experiment: str) -> Runs:
        runs = Runs(server.url, "a project", experiment)
        assert runs.is_ours()
        return runs

    return connect


def connect_plainly(server: MlflowServer, experiment: str) -> Runs:
    """Return the runs of an experiment, written as on a server of somebody else's."""
    runs = Runs(server.url, "a project", experiment)
    runs._is_ours = False
    return runs


def write_trial(runs: Runs, number: int, status: str | None = "FINISHED") -> str:
    """Write a whole trial, as a tracker does."""
    run = runs.get(number, None, "lstm lr=0.1", {"own": "tag"}, parent="a" * 32)
    content = RunContent(POINTS, {"optimizer.lr": 0.1}, {"eigensweep.outcome": "completed"})
    runs.send(run, content)
    runs.keep_text(run, "{}", "config.json")
    if status is not None:
        runs.end(run, status)
    return run


def describe(client: MlflowClient, run: str) -> dict[str, Any]:
    """Return what MLflow tells of a run, without ids and times of its own."""
    found, names = client.get_run(run), ("valid/loss", "rate")
    tags = {k: v for k, v in found.data.tags.items() if k != "eigensweep.experiment"}
    info = found.info
    return {
        "data": [tags, found.data.params, found.data.metrics],
        "info": [info.run_name, info.status, info.user_id, info.lifecycle_stage],
        "place": [info.experiment_id, info.artifact_uri.replace(run, "RUN")],
        "ended": info.end_time is not None,
        "history": [[dict(m) for m in client.get_metric_history(run, name)] for name in names],
        "files": [each.path for each in client.list_artifacts(run)],
    }


def test_a_run_of_a_batch_is_what_mlflows_own_requests_make(server, client, connect):
    runs = connect("batched")
    first, second = write_trial(runs, 0), write_trial(runs, 1, None)
    assert runs.flush() == {}
    alone = connect_plainly(server, "alone")
    written = write_trial(alone, 0)
    assert alone.flush() == {}
    made = describe(client, written)
    told = describe(client, first)
    assert {name: (told[name], made[name]) for name in told if told[name] != made[name]} == {}
    assert told["data"][2] == {"valid/loss": 0.25, "rate": 0.1}
    assert client.get_run(second).info.status == "RUNNING"
    assert len(client.search_runs([runs.project_id], "tags.own = 'tag'")) == 3


def test_drivers_that_do_not_know_of_each_other_write_one_run(client, connect):
    first, second = connect("twice"), connect("twice")
    found = [write_trial(runs, 0) for runs in (first, second)]
    assert first.flush() == second.flush() == first.flush() == {}
    wanted = "tags.`eigensweep.experiment` = 'twice'"
    (run,) = client.search_runs([first.project_id], wanted)
    assert found == [run.info.run_id] * 2
    assert len(client.get_metric_history(run.info.run_id, "valid/loss")) == 2


def test_a_run_that_is_there_goes_on_where_it_was(client, connect):
    write_trial(runs := connect("later"), 0)
    runs.flush()
    later = connect("later")
    run = later.get(0, None, "lstm lr=0.1", {})
    assert later.is_over(run)
    later.begin_again(run)
    assert later.flush() == {}
    assert client.get_run(run).info.status == "RUNNING"
    later.send(run, RunContent([CurvePoint(3, {"valid/loss": 0.75}, 3000)]))
    later.end(run, "KILLED")
    assert later.flush() == {}
    found = client.get_run(run)
    assert (found.info.status, found.data.metrics["valid/loss"]) == ("KILLED", 0.75)
    assert len(client.get_metric_history(run, "valid/loss")) == 3


def test_a_run_that_goes_on_no_longer_says_how_it_ended(client, connect):
    run = write_trial(runs := connect("retried"), 0)
    runs.send(run, RunContent(tags={OUTCOME: "failed", ERROR: "KeyError"}))
    runs.flush()
    later = connect("retried")
    run = later.get(0, None, "", {})
    later.keep_text(run, "{}", "config.json")  # as a tracker does, before it asks whether it ended
    later.begin_again(run)
    assert later.flush() == {}
    found = client.get_run(run)
    assert found.info.status == "RUNNING"
    assert {OUTCOME, ERROR}.isdisjoint(found.data.tags)


def test_a_run_that_ends_well_has_no_error_of_before(server, client, connect):
    for connected in (connect, partial(connect_plainly, server)):
        run = write_trial(runs := connected("ended twice"), 0)
        runs.send(run, RunContent(tags={OUTCOME: "failed", ERROR: "KeyError"}))
        runs.end(run, "FAILED")
        runs.flush()
        later = connected("ended twice")
        again = later.get(0, None, "", {})
        later.send(again, RunContent(tags={OUTCOME: "completed"}))
        later.end(again, "FINISHED")
        later.flush()
        found = client.get_run(run)
        assert (again, found.info.status) == (run, "FINISHED")
        assert (found.data.tags[OUTCOME], ERROR in found.data.tags) == ("completed", False)
        client.delete_run(run)


def test_a_run_in_parts_that_goes_on_says_no_end(client, connect, monkeypatch):
    monkeypatch.setattr(run_writes, "MOST_POINTS", 2)
    run = write_trial(runs := connect("in parts"), 0)
    runs.send(run, RunContent(tags={OUTCOME: "failed"}))
    (first,) = next_request(runs._waiting.values())
    assert runs._write([first]) == {}
    assert not runs._waiting[run].drop(first)
    runs.begin_again(run)
    assert runs.flush() == {}
    found = client.get_run(run)
    assert (found.info.status, OUTCOME in found.data.tags) == ("RUNNING", False)


def test_what_a_run_has_is_not_written_again(connect, client, tmp_path):
    store = Mock(wraps=SqlAlchemyStore(f"sqlite:///{tmp_path / 'mlflow.db'}", "mlflow-artifacts:/"))
    project = store.create_experiment("p")
    writer = Writer(Mock(), store, tmp_path)
    write = RunWrite("a" * 32, "first", 1, {"t": "v"}, {"lr": "0.1"}, [("loss", 0.5, 1000, 1)])
    write.status, write.end_time = "FINISHED", 5
    for _ in range(3):
        assert writer.write(project, [write]) == {}
    store.log_batch.assert_not_called()
    store.update_run_info.assert_not_called()
    write.points += [("loss", float("nan"), 2000, 2)]
    write.end_time = 6
    for _ in range(2):
        assert writer.write(project, [write]) == {}
    ((_, metrics, params, tags), _) = store.log_batch.call_args_list[0]
    assert ([each.step for each in metrics], params, tags) == ([2], [], [])
    assert store.log_batch.call_count == store.update_run_info.call_count == 1
    store.delete_run("a" * 32)
    assert "active" in writer.write(project, [write])["a" * 32]


def test_a_run_gets_no_id_of_a_deleted_one(server, client, connect):
    ids = [write_trial(runs := connect("gone"), 0)]
    runs.flush()
    client.delete_run(ids[0])
    ids.append(write_trial(runs := connect("gone"), 0))
    runs.flush()
    client.delete_run(ids[1])
    runs = connect("gone")
    runs._deleted[0, None] = {ids[1]}  # as after MLflow's `gc`, which removes the first
    runs._sure, runs._project_id = True, runs._take_project()
    assert runs.get(0, None, "", {}) == ids[0]


def test_a_run_that_is_refused_stops_no_other(client, connect):
    write_trial(runs := connect("refused"), 0)
    runs.flush()
    first = runs.get(0, None, "", {})
    runs.send(first, RunContent(params={"optimizer.lr": 0.2}))
    second = write_trial(runs, 1)
    refused = runs.flush()
    assert list(refused) == [first]
    assert "Changing param values is not allowed" in refused[first]
    assert client.get_run(second).info.status == "FINISHED"
    assert runs.flush() == {}


@pytest.mark.parametrize(
    ("run", "name"), [("A" * 32, "lr"), ("c" * 32, "../lr"), ("d" * 32, "l" * 251)]
)
def test_ids_and_names_that_mlflow_does_not_take_are_refused(connect, run, name):
    runs = connect(f"names {run}")
    write_trial(runs, 0)
    runs._waiting[run] = RunWrite(run, "a trial", 0, params={name: "1"})
    assert list(runs.flush()) == [run]


def test_a_trial_whose_run_a_person_deleted_gets_another(client, connect):
    run = write_trial(runs := connect("deleted"), 0)
    runs.flush()
    client.delete_run(run)
    again = write_trial(runs := connect("deleted"), 0)
    assert runs.flush() == {}
    assert again != run
    assert client.get_run(again).info.lifecycle_stage == "active"


@pytest.mark.parametrize("number", ["x", "0", "1", ""])
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.quick_cases(3)
def test_a_run_with_forged_tags_is_none_of_an_experiments_runs(client, connect, number, is_deleted):
    experiment = f"victim {number} {is_deleted}"
    runs = connect(experiment)
    write_trial(runs, 0)
    assert runs.flush() == {}
    tags = {"eigensweep.experiment": experiment, "eigensweep.trial": number}
    forged = client.create_run(runs.project_id, start_time=1, tags=tags).info.run_id
    if is_deleted:
        client.delete_run(forged)
    later = connect(experiment)
    found = [write_trial(later, 0), write_trial(later, 1)]
    assert later.flush() == {}
    assert forged not in found
    assert found[0] == write_trial(runs, 0)
    assert client.get_run(forged).data.metrics == {}
    assert {client.get_run(run).info.status for run in found} == {"FINISHED"}


@pytest.mark.parametrize("where", ["folder", "bucket"])
def test_a_driver_writes_no_file_where_a_project_says(server, client, connect, tmp_path, where):
    place = f"file://{tmp_path}/evil" if where == "folder" else "s3://a-bucket-of-somebody/x"
    client.create_experiment(f"planted {where}", artifact_location=place)
    (tmp_path / "best.pt").write_bytes(b"weights")
    runs = Runs(server.url, f"planted {where}", f"planted {where}")
    run = write_trial(runs, 0)
    assert runs.flush() == {}
    runs.keep_file(run, tmp_path / "best.pt", "best")
    with pytest.raises(MlflowRefusedError, match="elsewhere than in MLflow's own folder"):
        Runs(server.url, "analyses", "an analysis").keep_all(run, [tmp_path / "best.pt"], "x")
    assert not (tmp_path / "evil").exists()
    assert runs.refused.keys() == {"config.json", "best.pt"}
    assert "another project" in runs.refused["best.pt"]
    assert client.get_run(run).data.metrics == {"valid/loss": 0.25, "rate": 0.1}


def test_elsewhere_tags_that_are_no_numbers_are_left_alone(server, client):
    runs = connect_plainly(server, "elsewhere")
    run = write_trial(runs, 0)
    tags = {"eigensweep.experiment": "elsewhere", "eigensweep.replicate": "x"}
    client.create_run(runs.project_id, tags=tags)
    assert connect_plainly(server, "elsewhere").get(0, None, "", {}) == run


def test_a_text_stays_in_its_runs_folder(server, connect):
    runs = connect("texts")
    run = runs.get(0, None, "a trial", {})
    for name in ("../../outside", "/tmp/outside", "a/../../../b"):
        runs.keep_text(run, "words", name)
        assert list(runs.flush()) == [run]
        runs._waiting[run] = RunWrite(run, "a trial", 0)
    below = [path.name for path in server.log.parent.rglob("*") if "outside" in path.name]
    assert below == []


def test_a_text_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    writer, write = Writer(Mock(), Mock(), tmp_path), Path.write_text
    keep = partial(writer._keep_texts, "mlflow-artifacts:/1")
    keep(RunWrite("a" * 32, "a trial", 0, texts={"spec.yaml": "before"}))

    def fill_the_disk(path: Path, text: str, **named: Any) -> None:
        write(path, text[:3], **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", fill_the_disk)
    with pytest.raises(OSError, match="No space left"):
        keep(RunWrite("a" * 32, "a trial", 0, texts={"spec.yaml": "afterwards"}))
    assert (tmp_path / "1" / ("a" * 32) / "artifacts" / "spec.yaml").read_text() == "before"


def test_a_curve_that_is_too_long_for_one_request_arrives_whole(client, connect, monkeypatch):
    monkeypatch.setattr(run_writes, "MOST_POINTS", 100)
    runs = connect("long")
    run = runs.get(0, None, "a trial", {})
    runs.send(run, RunContent([CurvePoint(s, {"loss": 1 / s}, s) for s in range(1, 251)]))
    runs.end(run, "FINISHED")
    assert runs.flush() == {}
    assert len(client.get_metric_history(run, "loss")) == 250
    assert client.get_run(run).info.status == "FINISHED"


def test_what_a_lost_server_did_not_take_waits(client, connect, monkeypatch):
    runs = connect("lost")
    run = write_trial(runs, 0)
    there = runs._uri
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(runs, "_uri", nobody)
    with pytest.raises(AwayError):
        runs.flush()
    monkeypatch.setattr(runs, "_uri", there)
    assert runs.flush() == {}
    assert client.get_run(run).info.status == "FINISHED"


def test_nobody_without_the_secret_writes(server, client):
    request = urllib.request.Request(server.url + PATH, b'{"project": null, "runs": []}')
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)


@pytest.mark.parametrize("body", [b"[", b"{}", b'{"project": "0", "runs": [{"run_id": 1}]}'])
def test_what_is_no_list_of_runs_is_refused_with_words(server, client, body):
    headers = {"Authorization": f"Bearer {server.token}"}
    request = urllib.request.Request(server.url + PATH, body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 400
    assert b"not a list of runs" in refused.value.read()


class OtherServer(BaseHTTPRequestHandler):
    """An MLflow server of somebody else's, as far as it is asked here."""

    def do_GET(self) -> None:
        tag = {"key": "mlflow.experimentKind", "value": "x"}
        place = {"lifecycle_stage": "active", "artifact_location": "mlflow-artifacts:/7"}
        content = {"experiment": {"experiment_id": "7", **place, "tags": [tag]}}
        self.answer(200, json.dumps(content).encode())

    def do_POST(self) -> None:
        self.answer(404, b"Not Found")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def test_another_server_gets_one_run_after_the_other(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), OtherServer) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        runs = Runs(f"http://127.0.0.1:{other.server_address[1]}", "a project", "e1")
        assert not runs.is_ours()
        other.shutdown()


class ProxiedServer(OtherServer):
    """A server of ours, and a proxy that may answer in its place."""

    status, body = 200, b'{"refused": {}}'

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(self.status, self.body)


class TestAProxyAnswersInItsPlace:
    """What a proxy says of itself is neither a yes nor a refusal of MLflow's."""

    @pytest.fixture
    def runs(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
        monkeypatch.setattr(ProxiedServer, "status", 200)
        monkeypatch.setattr(ProxiedServer, "body", b'{"refused": {}}')
        with ThreadingHTTPServer(("127.0.0.1", 0), ProxiedServer) as proxy:
            Thread(target=proxy.serve_forever, daemon=True).start()
            yield Runs(f"http://127.0.0.1:{proxy.server_address[1]}", "a project", "e1")
            proxy.shutdown()

    @pytest.mark.parametrize("status", [200, 400, 404])
    def test_what_was_sent_still_waits(self, runs: Runs, status: int) -> None:
        assert runs.is_ours()
        runs._project_id, runs._sure = "7", True
        runs.get(0, None, "0", {})
        ProxiedServer.status, ProxiedServer.body = status, b"<html>try again later</html>"
        with pytest.raises(AwayError, match="try again later"):
            runs.flush()
        ProxiedServer.status, ProxiedServer.body = 200, b'{"refused": {}}'
        assert (runs.flush(), runs._waiting) == ({}, {})

    def test_what_mlflow_itself_refuses_is_refused(self, runs: Runs) -> None:
        assert runs.is_ours()
        runs._project_id, runs._sure = "7", True
        runs.get(0, None, "0", {})
        ProxiedServer.status, ProxiedServer.body = 400, b'{"error_code": "INVALID"}'
        with pytest.raises(MlflowRefusedError, match="INVALID"):
            runs.flush()

    @pytest.mark.parametrize(("status", "body"), [(200, b"<html>log in</html>"), (401, b"{}")])
    def test_it_does_not_tell_whose_the_server_is(
        self, runs: Runs, status: int, body: bytes
    ) -> None:
        ProxiedServer.status, ProxiedServer.body = status, body
        with pytest.raises(AwayError):
            runs.is_ours()
        ProxiedServer.status, ProxiedServer.body = 200, b'{"refused": {}}'
        assert runs.is_ours()


class TestASlowServer:
    """Of somebody else's, where each run is written alone."""

    @pytest.fixture
    def runs(self) -> Runs:
        made = Runs("http://nowhere", "a project", "e1")
        made._is_ours, made._client = False, Mock()
        for name in "abcd":
            made._know((ord(name), None), name, 0)
            made.end(name, "FINISHED")
        return made

    def test_threads_share_its_runs(self, runs):
        meeting = Barrier(2, timeout=60)  # a single thread would wait there for ever
        runs._client.set_terminated = lambda *_: meeting.wait()
        assert runs.flush() == {}
        assert runs._waiting == {}

    def test_what_it_did_not_take_waits_while_it_is_away(self, runs):
        errors = {"b": AwayError("away"), "c": MlflowRefusedError("no")}

        def end(run: str, *_: Any) -> None:
            if run in errors:
                raise errors[run]

        runs._client.set_terminated = end
        with pytest.raises(AwayError):
            runs.flush()
        assert list(runs._waiting) == ["b", "c"]
        del errors["b"]
        assert runs.flush() == {"c": "no"}
        assert runs._waiting == {}


class TestRequests:
    def test_many_runs_come_in_several(self):
        writes = [RunWrite(str(number), "a trial", 0) for number in range(run_writes.MOST_RUNS + 1)]
        assert next_request(writes) == writes[:-1]

    def test_a_part_says_nothing_of_the_end(self):
        write = RunWrite(
            "1", "a", 0, points=[("loss", 1.0, 0, s) for s in range(3)], status="KILLED"
        )
        part = write.cut(2)
        assert (len(part.points), part.status) == (2, None)
        assert not write.drop(part)
        assert (len(write.points), write.status) == (1, "KILLED")
        assert write.drop(write.cut(2))

"""The client against a stub whose answers and failures each test chooses."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from ssl import CERT_REQUIRED, SSLContext
from typing import Any
from urllib.parse import parse_qs

import numpy as np
import pytest
from helpers.waiting import PATIENCE
from typer.testing import CliRunner

from eigensweep.client import Client, InputError, RefusedError, ServiceAwayError
from eigensweep.client import connection as client_connection
from eigensweep.client.spec_file import parse_settings, read, with_settings
from eigensweep.command.cli import app
from eigensweep.search_spaces.dotted import PARTS
from eigensweep.search_spaces.parameters import Choice, Integer, Real

Answer = Callable[[BaseHTTPRequestHandler], None]
ID = "1m7xnz0qe2nqc"


def as_json(status: int, content: Any) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = json.dumps(content).encode()
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def as_events(*events: tuple[int, str]) -> Answer:
    """Send events, then break the connection off."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        for number, kind in events:
            text = f'id: {number}\nevent: {kind}\ndata: {{"experiment": "e7"}}\n\n'
            request.wfile.write(text.encode())

    return answer


class Stub:
    """A service that gives its `answers` in turn, and the last one again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                path = self.path.partition("?")[0]
                port = {"Connection-Of": str(self.client_address[1])}
                stub.heard.append((self.path, dict(self.headers) | port, self.rfile.read(length)))
                left = stub.answers.get(path, [as_json(404, {"title": "Not Found"})])
                (left.pop(0) if len(left) > 1 else left[0])(self)

            do_POST = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    thread = threading.Thread(target=stub.server.serve_forever, args=(0.01,))
    thread.start()
    yield stub
    stub.server.shutdown()
    stub.server.server_close()
    thread.join()


@pytest.fixture
def client(stub: Stub) -> Iterator[Client]:
    with Client(stub.url, token="let-me-in") as client:
        yield client


def test_events_continue_after_a_broken_connection(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"state": "running"}),
        as_json(200, {"state": "completed"}),
    ]
    stub.answers[f"/v1/experiments/{ID}/events"] = [
        as_events((1, "experiment.started"), (2, "trial.started")),
        as_events((3, "trial.completed"), (4, "experiment.completed")),
    ]

    heard = [(event.id, event.kind) for event in client.events(ID)]

    assert [id for id, _ in heard] == ["1", "2", "3", "4"]
    resumed = [headers.get("Last-Event-ID") for path, headers, _ in stub.heard if "events" in path]
    assert resumed == [None, "2"]


def test_events_go_on_over_an_end_that_was_not_the_last(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"state": "queued"}),
        as_json(200, {"state": "completed"}),
    ]
    stub.answers[f"/v1/experiments/{ID}/events"] = [
        as_events((1, "experiment.completed")),
        as_events((2, "experiment.reopened"), (3, "experiment.completed")),
    ]

    assert [event.id for event in client.events(ID)] == ["1", "2", "3"]


def test_an_empty_id_is_refused_with_what_would_work(stub: Stub, client: Client) -> None:
    for ask in (client.analysis, client.reproduction):
        with pytest.raises(ValueError, match=r"got ''; give an 'id' that GET /v1/\w+ lists"):
            ask("")
    with pytest.raises(ValueError, match="the name of an experiment is empty"):
        client.events("")
    assert stub.heard == []


def test_events_of_any_size_arrive_also_by_name(stub: Stub, client: Client) -> None:
    newest = {"id": ID, "name": "mine", "state": "failed"}
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [newest], "next_cursor": None})]
    stub.answers[f"/v1/experiments/{ID}"] = [as_json(200, newest)]
    stub.answers[f"/v1/experiments/{ID}/events"] = [
        as_events((1, "x" * 2**21), (2, "experiment.failed")),
    ]
    assert [event.id for event in client.events("last")] == ["1", "2"]


def test_there_are_no_events_after_the_end(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [as_json(200, {"state": "cancelled"})]
    stub.answers[f"/v1/experiments/{ID}/events"] = [as_events()]

    assert list(client.events(ID, after="9")) == []


def test_events_of_an_end_during_a_break_are_not_lost(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [as_json(200, {"state": "completed"})]
    stub.answers[f"/v1/experiments/{ID}/events"] = [
        as_events((1, "experiment.started")),
        as_events((2, "trial.completed"), (3, "experiment.completed")),
    ]

    assert [event.id for event in client.events(ID)] == ["1", "2", "3"]


def test_waiting_outlasts_a_restart_of_the_service(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"id": ID, "state": "running"}),
        lambda request: request.connection.close(),
        as_json(200, {"id": ID, "state": "completed"}),
    ]

    assert client.experiment(ID).wait(timeout=PATIENCE).state == "completed"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_waiting_outlasts_a_service_that_cannot_answer_now(
    stub: Stub, client: Client, status: int
) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"id": ID, "state": "running"}),
        as_json(status, {"title": "The database does not answer"}),
        as_json(200, {"id": ID, "state": "completed"}),
    ]

    assert client.experiment(ID).wait(timeout=PATIENCE).state == "completed"


def test_waiting_fails_when_the_service_stays_away(
    stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_connection, "PATIENCE_SECONDS", 0.0)
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"id": ID, "state": "running"}),
        lambda request: request.connection.close(),
    ]

    with pytest.raises(ServiceAwayError, match="no answer from the service at http"):
        client.experiment(ID).wait(timeout=PATIENCE)


def test_waiting_ends_at_its_timeout(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [as_json(200, {"id": ID, "state": "running"})]

    with pytest.raises(TimeoutError, match=rf"experiment {ID} is running after 0\.1 s"):
        client.experiment(ID).wait(timeout=0.1)


def test_a_timeout_bounds_the_wait_for_a_service_that_is_away(stub: Stub, client: Client) -> None:
    stub.answers[f"/v1/experiments/{ID}"] = [
        as_json(200, {"id": ID, "state": "running"}),
        lambda request: request.connection.close(),
    ]
    experiment = client.experiment(ID)
    with pytest.raises(TimeoutError, match=f"{ID} was running when last heard of; after 0.2 s"):
        experiment.wait(timeout=0.2)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_proxy_without_its_service_is_waited_for_no_longer(stub, client, status):
    running = as_json(200, {"id": ID, "state": "running"})
    stub.answers[f"/v1/experiments/{ID}"] = [running, as_json(status, {})]
    experiment = client.experiment(ID)
    with pytest.raises(TimeoutError, match=f"{ID} was running when last heard of; after 0.2 s"):
        experiment.wait(timeout=0.2, pause=60)


def ask_in_a_child(client: Client, path: str, answers: Connection) -> None:
    answers.send(client.get(path)["id"])


def test_after_a_fork_a_client_has_a_connection_of_its_own(
    stub: Stub, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an inherited one it would read what the service answers to its parent."""
    kept = "HTTP/1.1"
    monkeypatch.setattr(stub.server.RequestHandlerClass, "protocol_version", kept)
    numbers = list(range(8))
    for number in numbers:
        stub.answers[f"/v1/experiments/{number}"] = [as_json(200, {"id": number})]
    assert client.get("/v1/experiments/0")["id"] == 0
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(
        target=ask_in_a_child, args=(client, "/v1/experiments/5", theirs)
    )
    child.start()
    assert [client.get(f"/v1/experiments/{number}")["id"] for number in numbers] == numbers
    assert ours.poll(PATIENCE)
    assert ours.recv() == 5
    child.join()
    own = {headers["Connection-Of"] for _, headers, _ in stub.heard}
    assert len(own) == 2


def test_a_listing_is_read_to_its_last_page(stub: Stub, client: Client) -> None:
    stub.answers["/v1/experiments"] = [
        as_json(200, {"items": [{"id": "a"}, {"id": "b"}], "next_cursor": "2"}),
        as_json(200, {"items": [{"id": "c"}], "next_cursor": None}),
    ]

    assert [item["id"] for item in client.experiments(state="running")] == ["a", "b", "c"]
    assert "cursor=2" in stub.heard[-1][0]
    assert "state=running" in stub.heard[-1][0]


@pytest.mark.parametrize(("state", "first_row"), [("running", 150), ("completed", 0)])
def test_a_ranking_misses_no_trial_that_ends_meanwhile(
    stub: Stub, client: Client, state: str, first_row: int
) -> None:
    """Trial 150 ends between two pages as the best, and moves up to the page that was read."""

    def page(numbers: Iterable[int], cursor: str | None) -> Answer:
        return as_json(200, {"items": [{"number": n} for n in numbers], "next_cursor": cursor})

    stub.answers["/v1/experiments/1m7xnz0qe2nqc"] = [
        as_json(200, {"id": "1m7xnz0qe2nqc", "name": "a", "state": state})
    ]
    stub.answers["/v1/experiments/1m7xnz0qe2nqc/trials"] = [
        page(range(100), "x"),
        page(range(100, 150), None),
        page([150, *range(99)], "x"),
        page(range(99, 149), None),  # 149 has moved up, too
    ]
    found = client.experiment("1m7xnz0qe2nqc").listing(sort="value")
    assert found[0]["number"] == first_row
    if state == "running":
        assert sorted(trial["number"] for trial in found) == list(range(151))


def test_the_last_experiment_of_none_is_told_in_words(stub: Stub, client: Client) -> None:
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [], "next_cursor": None})]
    with pytest.raises(InputError, match="there is none yet"):
        client.find_id("last")


def test_sides_of_a_comparison_are_named_like_experiments(stub: Stub, client: Client) -> None:
    newest = {"id": "1m8bxmdwjhy85", "name": "my/sweep"}
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [newest], "next_cursor": None})]
    stub.answers["/v1/compare"] = [as_json(200, {})]
    client.compare("last/scornn", "1m8b/3", "my/sweep", "my/sweep/lstm", "1m7xnz0qe2nqc/4")
    query = parse_qs(stub.heard[-1][0].partition("?")[2])
    sides = [f"1m8bxmdwjhy85{part}" for part in ("/scornn", "/3", "", "/lstm")]
    assert query["of"] == [*sides, "1m7xnz0qe2nqc/4"]


def test_several_experiments_are_named_as_one_is(stub: Stub, client: Client) -> None:
    newest = {"id": "1m8bxmdwjhy85", "name": "my/sweep"}
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [newest], "next_cursor": None})]
    stub.answers["/v1/experiments/bulk"] = [as_json(200, {"items": []})]
    client.act("pause", "last", "my/sweep", "1m7xnz0qe2nqc")
    assert json.loads(stub.heard[-1][2])["ids"] == [*["1m8bxmdwjhy85"] * 2, "1m7xnz0qe2nqc"]


def test_a_submission_carries_the_token_and_a_key_of_its_own(stub: Stub, client: Client) -> None:
    stub.answers["/v1/experiments"] = [as_json(201, {"id": "e7", "name": "x", "state": "queued"})]

    client.submit({"name": "x"})
    client.submit({"name": "x"})

    first, second = (headers for _, headers, _ in stub.heard)
    assert first["Authorization"] == "Bearer let-me-in"
    assert first["Idempotency-Key"] != second["Idempotency-Key"]


@pytest.mark.parametrize(
    "lose", [lambda request: request.connection.close(), as_json(504, {"title": "too late"})]
)
def test_a_post_whose_answer_is_lost_is_repeated_as_the_same(
    stub: Stub, client: Client, lose: Answer
) -> None:
    made = {"id": ID, "name": "x", "state": "queued"}
    stub.answers["/v1/experiments"] = [
        lose,
        as_json(503, {"title": "not yet"}),
        as_json(201, made),
    ]
    assert client.submit({"name": "x"}).id == ID
    assert len({headers["Idempotency-Key"] for _, headers, _ in stub.heard}) == 1
    assert len(stub.heard) == 3


def test_a_post_that_was_not_sent_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connection, "outlast_restart", lambda ask: pytest.fail("repeated"))
    with pytest.raises(ServiceAwayError):
        Client("ftp://127.0.0.1:1").submit({"name": "x"})


def test_an_address_that_sends_on_is_told_where_to(stub: Stub, client: Client) -> None:
    def send_on(request: Any) -> None:
        request.send_response(308)
        request.send_header("Location", "https://lab.example/v1/experiments")
        request.send_header("Content-Length", "0")
        request.end_headers()

    stub.answers["/v1/experiments"] = [send_on]
    with pytest.raises(RefusedError, match=r"sends on to https://lab\.example/v1/experiments"):
        client.experiments()


def test_no_password_is_sent_in_the_tokens_place() -> None:
    with pytest.raises(InputError, match="has a name or a password in it") as refused:
        Client("https://me:secret@lab.example", "token")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", [f"{ID}/arms", f"{ID}/3", "lr/sweep"])
def test_no_slash_leads_to_another_part_of_the_api(stub: Stub, client: Client, name: str) -> None:
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [], "next_cursor": None})]
    with pytest.raises(InputError, match=f"there is no experiment '{name}': an id has no slash"):
        client.experiment(name)


def test_a_spec_without_a_name_is_told(client: Client) -> None:
    with pytest.raises(InputError, match="the name of a spec is empty"):
        client.submit("")


def test_a_page_of_something_else_is_no_file(stub: Stub, client: Client) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/html; charset=utf-8")
        request.end_headers()
        request.wfile.write(b"<p>Sign in</p>")

    stub.answers["/v1/experiments/x/trials.csv"] = [answer]
    with pytest.raises(RefusedError, match="speaks another language"):
        client.download("/v1/experiments/x/trials.csv")


@pytest.mark.parametrize("content", [{}, {"items": [1]}, {"items": [{}]}])
def test_a_command_tells_that_something_else_answers(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, content: dict[str, Any]
) -> None:
    monkeypatch.setenv("EIGENSWEEP_URL", stub.url)
    paths = ("v1/experiments", f"v1/experiments/{ID}", "v1/presets/quickstart", "v1/cluster")
    stub.answers |= {f"/{path}": [as_json(200, content)] * 3 for path in (*paths, "healthz")}
    for words in (["nodes"], ["show", ID], ["submit", "quickstart"], ["list"]):
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stderr.count("speaks another language")) == (1, 1), words


def test_a_bug_of_ours_is_not_taken_for_another_service(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EIGENSWEEP_URL", stub.url)
    stub.answers["/v1/cluster"] = [as_json(200, {})]
    stub.answers["/healthz"] = [as_json(200, {"status": "alive"})]
    assert isinstance(CliRunner().invoke(app, ["nodes"]).exception, KeyError)


def test_names_that_a_problem_offers_may_be_anything() -> None:
    error = RefusedError(
        422, {"errors": [{"message": "no", "available": each} for each in (3, [1])]}
    )
    assert str(error) == "HTTP 422:\n  no\n  no; there are 1"


def test_a_number_of_too_many_digits_is_a_name(stub: Stub, client: Client) -> None:
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [], "next_cursor": None})]
    with pytest.raises(InputError, match="an id has no slash"):
        client.find_trial(f"{ID}/{'9' * 5000}")


def test_a_name_like_an_id_is_looked_for(stub: Stub, client: Client) -> None:
    named = {"id": ID, "name": "20261130sweep"}
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [named], "next_cursor": None})]
    assert client.find_id("20261130sweep") == ID
    assert client.find_id("1m8bxmdwjhy85") == "1m8bxmdwjhy85"


def test_a_preset_is_fetched_and_changed_by_settings(stub: Stub, client: Client) -> None:
    spec = {"name": "p", "arms": [{"model": {"name": "lstm"}}], "training": {"steps": 5}}
    stub.answers["/v1/presets/papers/p"] = [as_json(200, {"name": "papers/p", "spec": spec})]
    stub.answers["/v1/experiments"] = [as_json(201, {"id": "e7", "name": "p", "state": "queued"})]

    client.submit("papers/p", seed=3, **{"arms.lstm.optimizer.lr": 0.1, "training.steps": 9})

    assert json.loads(stub.heard[-1][2]) == {
        "name": "p",
        "arms": [{"model": {"name": "lstm"}, "optimizer": {"lr": 0.1}}],
        "training": {"steps": 9},
        "seed": 3,
    }


def test_an_answer_of_another_program_is_refused(stub: Stub, client: Client) -> None:
    def page(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"<html>another program</html>")

    stub.answers[f"/v1/experiments/{ID}"] = [page]

    with pytest.raises(RefusedError, match="the answer is not JSON"):
        client.experiment(ID)


@pytest.mark.parametrize("content", [[], None, "ok", {}, {"items": None}])
def test_json_of_another_program_is_refused(stub: Stub, client: Client, content: Any) -> None:
    stub.answers["/v1/experiments"] = [as_json(200, content)]
    with pytest.raises(RefusedError, match="not Eigensweep's API"):
        client.experiments()


def test_problems_of_another_program_are_told(stub: Stub, client: Client) -> None:
    foreign = {"title": "Unprocessable", "detail": "no", "errors": ["a", "b"]}
    stub.answers["/v1/experiments"] = [as_json(422, foreign)]
    with pytest.raises(RefusedError) as caught:
        client.experiments()
    assert str(caught.value) == "Unprocessable: no"


def test_an_answer_that_cannot_be_unpacked_is_none(stub: Stub, client: Client) -> None:
    def packed(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", "2")
        request.end_headers()
        request.wfile.write(b"{}")

    stub.answers["/v1/experiments"] = [packed]
    with pytest.raises(ServiceAwayError, match="no answer from the service"):
        client.experiments()


@pytest.mark.parametrize("token", ["schlüssel", "a b", "a\rb", "a\nb"])
def test_what_cannot_be_a_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(InputError, match="EIGENSWEEP_TOKEN") as caught:
        Client("http://localhost:1", token=token)
    assert token not in str(caught.value)


def test_an_end_of_line_is_no_part_of_a_token(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGENSWEEP_TOKEN", "let-me-in\r\n")
    stub.answers["/healthz"] = [as_json(200, {})]
    with Client(stub.url) as client:
        client.get("/healthz")
    assert stub.heard[-1][1]["Authorization"] == "Bearer let-me-in"


def test_a_name_that_ends_in_a_number_is_found(stub: Stub, client: Client) -> None:
    spec = {"name": "run/3", "task": {"name": "copying"}}
    listed = {"id": ID, "name": "run/3", "spec": spec}
    stub.answers["/v1/experiments"] = [as_json(200, {"items": [listed], "next_cursor": None})]
    stub.answers[f"/v1/experiments/{ID}"] = [as_json(200, listed)]
    found, number = client.find_trial("run/3")
    assert (found.id, number) == (ID, None)
    found, number = client.find_trial("run/3/18")
    assert (found.id, number) == (ID, 18)


def test_numbers_of_numpy_are_sent_as_numbers(stub: Stub, client: Client) -> None:
    stub.answers["/v1/experiments/preview"] = [as_json(200, {"trials": 1})]
    client.preview({"a": np.int64(8), "b": np.array([0.5, 1]), "c": range(2), "d": np.float32(0.5)})
    ((_, _, body),) = stub.heard
    assert json.loads(body) == {"a": 8, "b": [0.5, 1.0], "c": [0, 1], "d": 0.5}


def test_dates_in_a_spec_are_texts(tmp_path: Any, client: Client) -> None:
    file = tmp_path / "d.toml"
    file.write_bytes("\ufeffname = 'x'\nwhen = 2020-01-02\nat = [07:32:00]\n".encode())
    assert read(file) == {"name": "x", "when": "2020-01-02", "at": ["07:32:00"]}
    with pytest.raises(InputError, match=r"cannot be sent as JSON: .*date"):
        client.submit({"name": date(2020, 1, 2)})


@pytest.mark.parametrize("url", ["http://[::1", "http://localhost:port"])
def test_a_malformed_address_is_refused_with_words(url: str) -> None:
    with pytest.raises(InputError, match="is not the address of a service"):
        Client(url)


@pytest.mark.parametrize(
    ("url", "times"),
    [("http://127.0.0.1:9", 0), ("https://127.0.0.1:9", 1), ("HTTPS://127.0.0.1:9", 1)],
)
def test_certificates_are_loaded_for_https_only(
    monkeypatch: pytest.MonkeyPatch, url: str, times: int
) -> None:
    loaded, load = list[Any](), SSLContext.load_verify_locations

    def note(context: SSLContext, *given: Any, **named: Any) -> None:
        loaded.append(context)
        load(context, *given, **named)

    monkeypatch.setattr(SSLContext, "load_verify_locations", note)
    Client(url).close()
    assert len(loaded) == times
    assert all(context.verify_mode is CERT_REQUIRED for context in loaded)


def test_numbers_in_a_spec_file_are_numbers(tmp_path: Any) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("{lr: [1e-3, 1E3, .5, -1.5e-2, 7], name: 1e, day: 2020-01-01}")

    assert read(file) == {
        "lr": [0.001, 1000.0, 0.5, -0.015, 7],
        "name": "1e",
        "day": "2020-01-01",
    }


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.steps", "write path=value"),
        ("training.steps=[1", "neither YAML nor JSON"),
        ("arms.gru.seed=1", "there is no 'gru' here; there is lstm, mine"),
        ("arms.2.seed=1", "there is no '2' here"),
        ("name.first=1", "name is 'x', which holds no fields"),
        ("search.space.seed.low=1", "search.space.seed is 3, which holds no fields"),
    ],
)
def test_a_setting_of_a_missing_field_is_refused_with_words(setting: str, message: str) -> None:
    arms = [{"model": {"name": "lstm"}}, {"name": "mine", "model": {}}]
    spec = {"name": "x", "arms": arms, "search": {"space": {"seed": 3}}}

    with pytest.raises(InputError, match=message.replace("(", r"\(").replace("[", r"\[")):
        with_settings(spec, parse_settings([setting]))


def test_settings_do_not_change_the_original_spec() -> None:
    spec = {"search": {"space": {"optimizer.lr": [1, 2]}}}

    changed = with_settings(spec, {"search.space.optimizer.lr": {"low": 1e-4, "high": 1}})

    assert changed == {"search": {"space": {"optimizer.lr": {"low": 1e-4, "high": 1}}}}
    assert spec == {"search": {"space": {"optimizer.lr": [1, 2]}}}


def test_one_end_of_a_range_can_be_set() -> None:
    ends = {"low": 1e-4, "high": 0.1, "log": True}
    space = {"optimizer.lr": ends, "model.hidden_size": [8, 16]}
    spec = {"arms": [{"name": "lstm", "space": space}], "search": {"space": space}}
    when = {"optimizer.name": ["adam"]}

    changed = with_settings(
        spec,
        {
            "search.space.optimizer.lr.high": 0.3,
            "arms.lstm.space.model.hidden_size.when": when,
            "search.space.optimizer.momentum.step": 1,
        },
    )

    wider = {"low": 1e-4, "high": 0.3, "log": True}
    assert changed["search"] == {
        "space": space | {"optimizer.lr": wider, "optimizer.momentum.step": 1}
    }
    parts = {"choices": [8, 16], "when": when}
    assert changed["arms"] == [{"name": "lstm", "space": space | {"model.hidden_size": parts}}]
    assert spec["search"] == {"space": space}


def test_a_search_starts_from_experiments_by_their_names(stub: Stub, client: Client) -> None:
    items = [{"id": ID, "name": "mine"}]
    stub.answers["/v1/experiments"] = [as_json(200, {"items": items, "next_cursor": None})]
    stub.answers["/v1/experiments/preview"] = stub.answers["/v1/experiments"]
    spec = {"search": {"warm_start": ["last", "mine", ID, 7]}}
    for post in (client.submit, client.preview):
        post(spec)
        assert json.loads(stub.heard[-1][2]) == {"search": {"warm_start": [ID, ID, ID, 7]}}


def test_settings_know_every_part_of_a_parameter() -> None:
    kinds = (Choice, Real, Integer)

    assert {field.alias or name for k in kinds for name, field in k.model_fields.items()} == PARTS


def test_a_proxy_that_needs_another_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with pytest.raises(InputError, match="the proxy that is set cannot be used"):
        Client("http://service.example")

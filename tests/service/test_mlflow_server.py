"""An MLflow server that cannot run, or does not answer as it should."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from configparser import Error as ConfigParserError
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from unittest.mock import Mock

import pytest
from helpers.waiting import wait_until
from mlflow.store.tracking import sqlalchemy_store
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request

from eigensweep.service import settings
from eigensweep.service.process import mlflow_server
from eigensweep.service.process.mlflow_app import make_database
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.service.settings import Mlflow
from eigensweep.workers.tracking.secret_auth import make_variables


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which nobody answers: it is held, so that no other test listens there."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def test_what_it_said_at_its_end_is_told_where_it_is_silent(
    tmp_path: Path, silent_port: int
) -> None:
    server = MlflowServer(tmp_path / "mlflow", silent_port)
    (tmp_path / "mlflow" / "mlflow.db").write_bytes(b"overwritten" * 1000)
    reached = Mlflow(server.url, server.url, server.token, explain_end=server.explain_end)
    assert "it ended" not in reached.find_problem()
    server.start()
    try:

        def explain() -> str:
            server.watch(reached.find_problem)
            return server.explain_end()

        wait_until(explain, server.log.read_text)
        assert "file is not a database" in reached.find_problem()
    finally:
        server.stop()


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MlflowServer]:
    """A server whose process does nothing, and which is looked at whenever `watch` is called."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(mlflow_server, "LOOK_SECONDS", 0.0)
    server = MlflowServer(tmp_path / "mlflow", 5000)
    (tmp_path / "mlflow" / "mlflow.db").touch()
    server.start()
    yield server
    server.stop()


def test_a_database_has_its_name_once_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends while it is made, as by Ctrl-C or on a full disk, leaves nothing to stumble on."""
    place, ends = tmp_path / "mlflow.db", True

    def make(uri: str, root: str) -> Mock:
        draft = Path(uri.removeprefix("sqlite:///"))
        assert (draft.parent, draft.exists()) == (tmp_path, False)
        draft.write_text(root)
        if ends:
            draft.with_name(f"{draft.name}-journal").touch()
            raise KeyboardInterrupt
        return Mock()

    monkeypatch.setattr(sqlalchemy_store, "SqlAlchemyStore", make)
    with pytest.raises(KeyboardInterrupt):
        make_database(f"sqlite:///{place}", "a root")
    assert not place.exists()
    place.touch()  # a file of no bytes is no database
    ends = False
    make_database(f"sqlite:///{place}", "a root")
    assert ([each.name for each in tmp_path.iterdir()], place.read_text()) == (
        ["mlflow.db"],
        "a root",
    )
    make_database(f"sqlite:///{place}", "another root")
    assert place.read_text() == "a root"


@pytest.mark.parametrize("problem", [None, "it answers 400, since its database is damaged"])
def test_one_whose_database_is_another_file_is_started_again(
    idle: MlflowServer, tmp_path: Path, problem: str | None
) -> None:
    first = idle._process
    for _ in range(3):
        idle.watch(lambda: None)
    assert (idle._process, first.poll()) == (first, None)
    (tmp_path / "mlflow" / "mlflow.db").unlink()
    wait_until(lambda: idle.watch(lambda: problem) or idle._process is not first)
    second = idle._process
    for _ in range(3):
        idle.watch(lambda: None)
    assert (idle._process, second.poll()) == (second, None)


def test_one_that_hangs_is_started_again_once_it_had_answered(idle: MlflowServer) -> None:
    first = idle._process
    for problem in (*20 * ["starts"], None, *9 * ["no answer"], None, *9 * ["no answer"]):
        idle.watch(lambda problem=problem: problem)
    assert idle._process is first
    assert first.poll() is None

    def is_another() -> bool:
        idle.watch(lambda: "no answer")
        return idle._process is not first

    wait_until(is_another)
    assert first.returncode == -signal.SIGKILL
    assert idle._process.poll() is None


class Other(BaseHTTPRequestHandler):
    """An MLflow server that has a secret, and remembers what it was sent."""

    sent: ClassVar[list[str | None]] = []
    kind: ClassVar[str] = "application/json"
    status: ClassVar[int] = 200

    def do_GET(self) -> None:
        self.sent.append(self.headers["Authorization"])
        knows = self.path == "/health" or self.headers["Authorization"] == "Bearer theirs"
        self.send_response(self.status if knows else 401)
        if self.kind:
            self.send_header("Content-Type", self.kind)
        self.end_headers()
        self.wfile.write(b'{"message":\n "%b"}' % (b"damaged " * 1000))

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def url() -> Iterator[str]:
    """Return the address of such a server."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(("kind", "told"), [("text/html", "text/html"), ("", "no type")])
def test_a_page_of_a_proxy_is_no_mlflow(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: str, told: str
) -> None:
    monkeypatch.setattr(Other, "kind", kind)
    words = f"instead of MLflow something else answers, with {told}"
    assert Mlflow(url, url, "theirs").find_problem() == words


def test_the_beginning_of_what_it_answers_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Other, "status", 400)
    told = Mlflow(url, url, "theirs").find_problem() or ""
    assert told.startswith('it answers 400: {"message": "damaged damaged')
    assert len(told) < 350
    monkeypatch.setattr(Other, "kind", "text/html")
    assert Mlflow(url, url, "theirs").find_problem() == "it answers 400"


@pytest.mark.parametrize("name", ["http_proxy", "HTTP_PROXY"])
def test_a_proxy_leads_to_others_and_not_to_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for each in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(each, raising=False)
    far = "http://mlflow.example.invalid"
    assert Mlflow(far, far, "theirs").find_problem() is not None
    monkeypatch.setenv(name, url)
    assert Mlflow(far, far, "theirs").find_problem() is None
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert Mlflow(url, url, "theirs").find_problem() is None


def test_a_server_of_another_secret_cannot_be_used(url: str) -> None:
    found = [Mlflow(url, url, token).find_problem() for token in (None, "theirs", "ours")]
    assert found[1:] == [None, "it answers 401: it is the server of another secret"]
    assert found[0] == "it answers 401: it wants one: set EIGENSWEEP_MLFLOW_TOKEN"


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("user", [None, "u"])
@pytest.mark.parametrize("password", [None, "p"])
@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize("ours", [None, "theirs"])
def test_it_is_asked_with_what_mlflow_s_client_sends(
    monkeypatch, tmp_path, url, has_file, user, password, token, ours
) -> None:
    given = {"USERNAME": user, "PASSWORD": password, "TOKEN": token, "AUTH": None}
    for name, value in given.items():
        monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    monkeypatch.setenv("HOME", str(tmp_path))
    if has_file:
        (tmp_path / ".mlflow").mkdir()
        lines = "[mlflow]", "mlflow_tracking_username = kept", "mlflow_tracking_password = x"
        (tmp_path / ".mlflow/credentials").write_text("\n".join(lines))
    Mlflow(url, url, ours).find_problem()
    for name, value in ({} if ours is None else make_variables(ours)).items():
        monkeypatch.setenv(name, value)
    path = "/api/2.0/mlflow/experiments/search"
    http_request(get_default_host_creds(url), path, "GET", max_retries=0)
    asked, sent = Other.sent[-2:]
    assert asked == sent
    assert ours is None or sent == "Bearer theirs"


@pytest.mark.parametrize(
    "content", [None, "[mlflow]\nü = 1", "secret", "[mlflow]\nmlflow_tracking_password = a%secret"]
)
def test_a_file_that_mlflow_s_client_cannot_read_is_told(
    monkeypatch, tmp_path, url, content
) -> None:
    (tmp_path / ".mlflow").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    if content is None:  # there may be no home folder
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        (tmp_path / ".mlflow/credentials").write_bytes(content.encode("latin-1"))
        with pytest.raises((ConfigParserError, UnicodeDecodeError)):
            get_default_host_creds(url)
    words = Mlflow(url, url).find_problem()
    begin = "it answers 401" if content is None else "MLflow's client cannot read ~/.mlflow"
    assert words is not None
    assert words.startswith(begin)
    assert content is None or "secret" not in words


def test_one_that_answers_drop_by_drop_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "PATIENCE_SECONDS", 0.5)
    asked: list[socket.socket] = []
    is_over = threading.Event()

    def drip(listener: socket.socket) -> None:
        while not is_over.is_set():
            with suppress(OSError):
                asked.append(listener.accept()[0])
                asked[-1].sendall(b"HTTP/1.1 200 OK\r\nx: ")
                for _ in range(200):
                    asked[-1].sendall(b"y")
                    if is_over.wait(0.1):
                        break
                asked[-1].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        server = threading.Thread(target=drip, args=[listener], daemon=True)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        reached = Mlflow(url, url)
        assert [reached.find_problem() for _ in range(3)] == ["no answer within 0.5 s"] * 3
        assert len(asked) == 1
        is_over.set()
        server.join()

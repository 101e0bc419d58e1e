"""Bodies that nobody may send, or that come slowly: sent to a real server, over plain sockets."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPResponse
from typing import Any

import pytest
import uvicorn
from helpers.waiting import PATIENCE, wait_until
from pydantic import SecretStr

from eigensweep.service.api.app import create_app
from eigensweep.service.api.middleware import limits
from eigensweep.service.process.timed_http import TimedHttp
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.settings import Mlflow

LARGE = limits.LARGEST_BODY
Open = Callable[..., socket.socket]


@pytest.fixture
def begin(settings: Any, record: Any, dispatcher: Any) -> Iterator[Open]:
    """Returns what opens a connection to the service and sends the headers of a request."""
    own = settings.model_copy(update={"token": SecretStr("of-the-operator")})
    mlflow = Mlflow("http://127.0.0.1:9", "/mlflow", "the secret")
    app = create_app(own, record, dispatcher, mlflow)
    config = uvicorn.Config(app, http=TimedHttp, lifespan="off", log_config=None)
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    wait_until(lambda: server.started)
    tokens = {
        user: Accounts(record.url).create_token(user, scope, 3600).token
        for user, scope in (("reader", "read"), ("anna", "submit"), ("ben", "submit"))
    }
    with ExitStack() as stack:

        def open_one(user: str, path: str, *headers: str, sent: bytes = b"") -> socket.socket:
            there = socket.create_connection(listener.getsockname(), PATIENCE)
            stack.enter_context(there)
            token = tokens.get(user, "wrong")
            lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}"]
            lines += ["Content-Type: application/json", *headers]
            there.sendall("\r\n".join([*lines, "", ""]).encode() + sent)
            return there

        yield open_one
    server.should_exit = True
    thread.join()
    listener.close()


def read(there: socket.socket) -> tuple[HTTPResponse, str]:
    """Return the answer to a request, whose body may still be missing."""
    answer = HTTPResponse(there)
    answer.begin()
    return answer, answer.read().decode()


def status(there: socket.socket) -> int:
    return read(there)[0].status


ANNOUNCED = (f"Content-Length: {LARGE}",), ("Transfer-Encoding: chunked",)


@pytest.mark.quick_cases(8)
@pytest.mark.parametrize("length", ANNOUNCED)
@pytest.mark.parametrize(
    ("user", "path", "refused"),
    [
        ("stranger", "/v1/experiments", 401),
        ("stranger", "/mlflow/ajax-api/2.0/mlflow/runs/search", 401),
        ("reader", "/v1/experiments", 403),
        ("reader", "/v1/experiments/bulk", 403),
        ("reader", "/v1/experiments/0/extend", 403),
        ("reader", "/mlflow/api/2.0/mlflow/runs/set-tag", 403),
        ("anna", "/v1/tokens", 403),
        ("anna", "/mlflow/api/2.0/mlflow/runs/delete", 403),
        ("anna", "/mlflow/api/2.0/mlflow/runs/log-batch", 403),
        ("reader", "/v1/nothing", 404),
        ("reader", "/v1/models", 405),
    ],
)
def test_who_may_not_send_a_body_is_answered_before_it(begin, user, path, refused, length):
    assert status(begin(user, path, *length)) == refused


def test_a_refusal_leaves_the_connection_in_order(begin, spec):
    body = json.dumps(spec()).encode()
    there = begin("reader", "/v1/experiments", f"Content-Length: {len(body)}")
    assert status(there) == 403
    there.sendall(body + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(there) == 200


class TestManyBodies:
    PREVIEW = "/v1/experiments/preview"

    def fill(self, begin: Open, user: str, length: str) -> list[socket.socket]:
        """Begin as many requests of a user as are taken at once, and send no body."""
        most = limits.MOST_HELD // LARGE
        asked = [begin(user, self.PREVIEW, length) for _ in range(2 * most)]

        def has_refused() -> bool:
            return len(select.select(asked, [], [], 0)[0]) == most

        wait_until(has_refused)
        return asked

    @pytest.mark.parametrize("length", [length for (length,) in ANNOUNCED])
    def test_of_one_user_are_bounded_and_of_others_taken(self, begin, spec, length):
        filled = self.fill(begin, "reader", length)
        body = json.dumps(spec()).encode()
        short = f"Content-Length: {len(body)}"
        answer, told = read(begin("reader", self.PREVIEW, short))
        assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
        assert "send this again when they are answered" in told
        assert status(begin("ben", self.PREVIEW, short, sent=body)) == 200
        empty = begin("anna", "/v1/experiments/none/cancel", "Content-Length: 0")
        assert status(empty) == 404
        for each in filled:
            each.close()

        def is_free() -> bool:
            return status(begin("reader", self.PREVIEW, short, sent=body)) == 200

        wait_until(is_free)

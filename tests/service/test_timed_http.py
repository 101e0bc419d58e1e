"""Connections that hold a server up: each is tried against a real one, with short limits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import uvicorn
from helpers.waiting import PATIENCE, wait_until

from eigensweep.service.process.timed_http import TimedHttp, TimedHttpOfArtifacts

LARGE = 64 * 2**20


class Hasty(TimedHttp):
    head_seconds = body_seconds = answer_seconds = 0.5
    most_connections = 20


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer at once, with the body that came, much, or slowly."""
    piece: dict[str, Any] = {"body": b"", "more_body": True}
    body = b""
    while piece.get("more_body"):
        piece = await receive()
        body += piece.get("body", b"")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/slow":
        for _ in range(3):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await asyncio.sleep(Hasty.body_seconds)
    answer = b"y" * LARGE if scope["path"] == "/large" else body
    await send({"type": "http.response.body", "body": answer})


@pytest.fixture
def server() -> Iterator[tuple[int, Any]]:
    """The port of a server, and the server."""
    config = uvicorn.Config(app, http=Hasty, port=0, lifespan="off", log_config=None)
    made, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(made.serve([listener])))
    thread.start()
    wait_until(lambda: made.started)
    yield listener.getsockname()[1], made
    made.should_exit = True
    thread.join()
    listener.close()


def connect(port: int, sent: bytes = b"") -> socket.socket:
    there = socket.create_connection(("127.0.0.1", port), PATIENCE)
    there.sendall(sent)
    return there


def read_all(there: socket.socket) -> bytes:
    """Return what comes until the other side closes."""
    with there:
        found = b""
        while piece := there.recv(2**16):
            found += piece
        return found


def test_headers_that_do_not_come_whole_end_the_connection(server):
    assert read_all(connect(server[0])).startswith(b"HTTP/1.1 408")
    assert read_all(connect(server[0], b"GET / HTTP/1.1\r\nA: ")).startswith(b"HTTP/1.1 408")


def test_headers_that_come_byte_by_byte_do_so_too(server):
    there = connect(server[0], b"GET / HTTP/1.1\r\nA: ")
    ended = threading.Event()

    def trickle() -> None:
        try:
            while not ended.wait(0.05):
                there.sendall(b"x")
        except OSError:
            ended.set()

    threading.Thread(target=trickle, daemon=True).start()
    wait_until(ended.is_set)
    there.close()


def test_a_second_request_of_a_connection_has_the_same_limit(server):
    there = connect(server[0], b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HT")
    assert read_all(there).count(b"200 OK") == 1


def test_a_body_that_does_not_come_whole_ends_the_connection(server):
    there = connect(server[0], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc")
    assert read_all(there).startswith(b"HTTP/1.1 408")


def test_a_whole_request_may_be_answered_for_longer(server):
    request = b"GET /slow HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert read_all(connect(server[0], request)).count(b"x\r\n") == 3


def test_an_answer_that_nobody_reads_ends_the_connection(server):
    port, made = server
    there = connect(port, b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    wait_until(lambda: made.server_state.connections)
    wait_until(lambda: not made.server_state.connections)
    there.close()


def test_where_there_are_too_many_the_longest_waiting_goes(server, monkeypatch):
    monkeypatch.setattr(Hasty, "head_seconds", PATIENCE)
    with ExitStack() as stack:
        for _ in range(3 * Hasty.most_connections):
            stack.enter_context(connect(server[0]))
        there = connect(server[0], b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200 OK" in read_all(there)
        assert len(server[1].server_state.connections) <= Hasty.most_connections


def test_artifacts_may_take_longer():
    assert TimedHttpOfArtifacts.body_seconds > TimedHttp.body_seconds
    assert TimedHttpOfArtifacts.head_seconds == TimedHttp.head_seconds

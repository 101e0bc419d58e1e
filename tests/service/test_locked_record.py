"""What the API answers while another process holds the lock of the record."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from anyio import to_thread
from fastapi.routing import iter_route_contexts
from helpers.waiting import PATIENCE, wait_until
from sqlalchemy import make_url

from eigensweep.service.api.answers import writers
from eigensweep.service.api.answers.writers import BusyError, Writers
from eigensweep.service.process.serve import THREADS
from eigensweep.service.record.sql import database
from eigensweep.service.record.users.accounts import Accounts

CHANGES_NOTHING = {"/v1/experiments/preview"}


async def limit_threads() -> None:
    to_thread.current_default_thread_limiter().total_tokens = THREADS


@contextmanager
def locked(url: str) -> Iterator[None]:
    """Hold the record as another program does; SQLite knows no difference."""
    other = sqlite3.connect(str(make_url(url).database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.close()


@pytest.fixture
def token(client, record) -> str:
    client.portal.call(limit_threads)
    return Accounts(record.url).create_token("anna", "submit", None).token


def test_reads_go_on_while_eight_posts_wait(client, url, token, spec, monkeypatch):
    monkeypatch.setattr(writers, "WRITERS", Writers())
    client.headers["Authorization"] = f"Bearer {token}"
    names = {f"number {number}" for number in range(8)}

    def post(name: str) -> int:
        return client.post("/v1/experiments", json=spec(name=name)).status_code

    with ThreadPoolExecutor(8) as threads:
        with locked(url):
            posts = [threads.submit(post, name) for name in names]
            wait_until(lambda: writers.WRITERS._waiting == len(names))
            assert client.get("/v1/experiments?limit=5").json()["items"] == []
            assert client.get("/v1/models").status_code == 200
        assert [each.result(PATIENCE) for each in posts] == [201] * len(names)
    assert {each["name"] for each in client.get("/v1/experiments").json()["items"]} == names


def test_posts_beyond_a_bound_are_told_to_come_again(client, url, spec, monkeypatch):
    monkeypatch.setattr(writers, "WRITERS", Writers(threads=1, most=2))
    with ThreadPoolExecutor(2) as threads:
        with locked(url):
            posts = [
                threads.submit(client.post, "/v1/experiments", json=spec(name=str(number)))
                for number in range(2)
            ]
            wait_until(lambda: writers.WRITERS._waiting == 2)
            refused = client.post("/v1/experiments", json=spec(name="one more"))
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert "nothing was changed" in refused.json()["detail"]
        assert [each.result(PATIENCE).status_code for each in posts] == [201, 201]
    names = [each["name"] for each in client.get("/v1/experiments").json()["items"]]
    assert sorted(names) == ["0", "1"]


def test_an_entered_refusal_keeps_no_thread_of_reads(client, url, token, monkeypatch):
    monkeypatch.setattr(writers, "WRITERS", Writers())
    monkeypatch.setattr(database, "BUSY_SECONDS", 1)
    good = {"Authorization": f"Bearer {token}"}
    with ThreadPoolExecutor(THREADS) as threads, locked(url):
        for number in range(THREADS):
            threads.submit(client.get, "/v1/models", headers={"Authorization": f"Bearer {number}"})
        wait_until(lambda: writers.WRITERS._waiting > 0)
        assert client.get("/v1/experiments", headers=good).status_code == 200


def test_every_route_that_changes_things_is_a_writer(client):
    found = {
        each.path: inspect.iscoroutinefunction(each.original_route.endpoint)
        for each in iter_route_contexts(client.app.routes)
        if getattr(each.original_route, "methods", None)
        and not each.original_route.methods <= {"GET", "HEAD", "OPTIONS"}
    }
    assert len(found) > 20
    assert {path for path, is_among in found.items() if not is_among} == CHANGES_NOTHING


def test_what_runs_there_answers_or_raises_and_leaves_room():
    async def ask() -> None:
        pool = Writers(threads=1, most=1)
        go_on = threading.Event()
        first = asyncio.create_task(pool.run(lambda: go_on.wait(PATIENCE)))
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="1 requests wait"):
            await pool.run(lambda: None)
        go_on.set()
        assert await first
        with pytest.raises(ZeroDivisionError):
            await pool.run(lambda: 1 // 0)
        assert await pool.run(lambda: 7) == 7

    asyncio.run(ask())

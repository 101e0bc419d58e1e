"""What `/readyz` says of a record and of disks that nothing more can be expected of."""

from __future__ import annotations

import errno
import os
import resource
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from anyio import to_thread
from helpers.waiting import PATIENCE, wait_until
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from eigensweep.service.api.routes import health
from eigensweep.service.process.serve import THREADS
from eigensweep.service.record.sql import database
from eigensweep.store.places import disk_space
from eigensweep.store.places.disk_space import explain_unwritable

PAGE = 4096


@pytest.fixture
def damaged(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A record of which only the first page is whole, as after a fault of the disk."""
    monkeypatch.setattr(database, "_damage", {})
    database.engine(url).dispose()
    path = Path(str(make_url(url).database))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(os.urandom(size - PAGE))
    return url


def check(client: Any, name: str) -> tuple[int, bool, str]:
    answer = client.get("/readyz")
    found = answer.json()["checks"][name]
    return answer.status_code, found["ready"], found["detail"]


class TestADamagedRecord:
    def test_is_found_at_the_start(self, damaged, client):
        database.look_for_damage(damaged)
        assert check(client, "database")[:2] == (503, False)
        words = database.find_damage(damaged)  # told to who can show who it is
        assert "is damaged" in words
        assert "restore a backup" in words

    def test_is_found_by_the_first_request_that_reads_it(self, damaged, client):
        answer = client.get("/v1/experiments")
        assert (answer.status_code, "is damaged" in answer.json()["detail"]) == (500, True)
        assert check(client, "database")[:2] == (503, False)

    def test_a_whole_one_is_ready(self, client, url, monkeypatch):
        monkeypatch.setattr(database, "_damage", {})
        database.look_for_damage(url)
        assert check(client, "database") == (200, True, "")

    @pytest.mark.parametrize("state", ["XX001", "XX002"])
    def test_postgresql_says_so_by_its_codes(self, state):
        class AnswerError(Exception):
            sqlstate = state

        assert database.is_damaged(DBAPIError("SELECT", None, AnswerError()))


class TestAFolderThatTakesNoFile:
    @pytest.mark.parametrize(
        ("number", "words"),
        [(errno.EROFS, "Read-only file system"), (errno.ENOSPC, "its bytes or its inodes")],
    )
    def test_is_named_with_the_reason(self, client, settings, monkeypatch, number, words):
        assert check(client, "disk") == (200, True, "")

        def refuse(**_: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(disk_space.tempfile, "TemporaryFile", refuse)
        status, ready, found = check(client, "disk")
        assert (status, ready) == (503, False)
        assert found.startswith(f"nothing can be written to {settings.home}: ")
        assert words in found

    def test_is_found_by_trying_and_nothing_is_left_behind(self, tmp_path):
        assert explain_unwritable(tmp_path) is None
        assert not list(tmp_path.iterdir())
        assert explain_unwritable(tmp_path / "made when it is needed") is None
        assert "nothing can be written to /sys" in str(explain_unwritable(Path("/sys")))

    def test_room_for_an_empty_file_is_not_enough(self, tmp_path):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            assert str(explain_unwritable(tmp_path)).endswith("File too large")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_where_the_record_is_full_a_post_says_so(self, client, record, spec, monkeypatch):
        with closing(sqlite3.connect(":memory:")) as small:
            small.execute("PRAGMA max_page_count = 1")
            with pytest.raises(sqlite3.OperationalError) as full:
                small.execute("CREATE TABLE runs (id)")

        def fail(*_: Any, **__: Any) -> None:
            raise OperationalError("INSERT", {}, full.value)

        monkeypatch.setattr(type(record), "add", fail)
        answer = client.post("/v1/experiments", json=spec())
        assert answer.status_code == 503
        assert "the record has no room on its disk; nothing was changed" in answer.json()["detail"]


class TestALookThatHangs:
    """A network's disk that does not answer, while monitors and strangers ask."""

    @pytest.fixture
    def hanging(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        go_on, begun = threading.Event(), threading.Event()

        def hang(_: Any) -> health.Check:
            begun.set()
            go_on.wait(PATIENCE)
            return health.Check(ready=True, detail="")

        monkeypatch.setitem(health.CHECKS, "disk", hang)
        yield begun, go_on
        go_on.set()

    def test_keeps_one_thread_however_many_ask(self, client, hanging):
        begun, go_on = hanging

        async def limit() -> None:
            to_thread.current_default_thread_limiter().total_tokens = THREADS

        client.portal.call(limit)
        with ThreadPoolExecutor(8) as threads:
            for _ in range(8):
                threads.submit(client.get, "/readyz")
            wait_until(begun.is_set)
            assert client.get("/v1/experiments").status_code == 200
            go_on.set()

    def test_is_not_waited_for_without_end(self, client, hanging, monkeypatch):
        monkeypatch.setattr(health, "LONGEST_SECONDS", 0.1)
        assert check(client, "answers") == (503, False, health.LATE)

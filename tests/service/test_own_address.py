"""To whom a client that was given no address sends its token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eigensweep.client import ServiceAwayError
from eigensweep.client.connection import Connection, read_own_url
from eigensweep.command import reproduce
from eigensweep.command.frame import Call
from eigensweep.service.process.home import write_address

URL = "http://127.0.0.1:9"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EIGENSWEEP_HOME", str(tmp_path))
    monkeypatch.delenv("EIGENSWEEP_URL", raising=False)
    write_address(tmp_path, URL, "/mlflow")
    return tmp_path


def change(home: Path, **fields: Any) -> None:
    path = home / "service.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_the_address_of_a_service_that_lives_is_used(home):
    with Connection() as connection:
        assert connection.url == URL


def test_no_token_goes_to_the_address_of_an_ended_service(home):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    change(home, pid=ended.pid)
    with (
        Connection(token="secret") as connection,
        pytest.raises(ServiceAwayError, match="has ended"),
    ):
        connection.get("/readyz")
    assert read_own_url(home) is None


def test_a_service_that_has_not_come_up_yet_has_not_ended(home):
    change(home, pid=2**22 + 1)
    for holder, words in ((os.getpid(), "is starting"), (2**22 + 1, "has ended")):
        (home / "service.lock").write_text(f"process {holder}, started 2026-11-30 20:00:00")
        with Connection() as connection, pytest.raises(ServiceAwayError, match=words):
            connection.get("/readyz")


def test_a_home_without_a_service_sends_nothing_to_another_ones(home, monkeypatch):
    empty = home / "mistyped"
    monkeypatch.setenv("EIGENSWEEP_HOME", f" {empty} ")
    with (
        Connection(token="secret") as connection,
        pytest.raises(ServiceAwayError, match=f"no service has begun in {empty}"),
    ):
        connection.get("/readyz")
    empty.mkdir()
    write_address(empty, URL, "/mlflow")
    with pytest.raises(ServiceAwayError, match=f"no answer from the service at {URL}"):
        connection.get("/readyz")


def test_where_a_service_has_ended_this_installation_answers(home, monkeypatch):
    change(home, pid=2**22 + 1)
    assert "copying" in json.dumps(Call().near.get("/v1/presets"))


def test_where_a_service_has_ended_another_is_started(home, monkeypatch):
    change(home, pid=2**22 + 1)

    @contextmanager
    def play(home: Path, screen: object) -> Iterator[str]:
        yield f"the service of {home}"

    monkeypatch.setattr(reproduce, "running_service", play)
    with reproduce.service_of_our_own(Call(), None) as client:
        assert client == f"the service of {home}"


def test_it_is_found_where_the_clock_was_set_since(home):
    os.utime(home / "service.json", (0, 0))  # as if the clock had jumped ahead by decades
    assert read_own_url(home) == URL


def test_nor_where_another_process_has_got_its_number(home):
    change(home, after_boot=0.0)
    os.utime(home / "service.json", (0, 0))  # written long before this process began
    with (
        Connection(token="secret") as connection,
        pytest.raises(ServiceAwayError, match="has ended"),
    ):
        connection.get("/readyz")
    change(home, pid=1)
    assert os.getuid() == 0 or read_own_url(home) is None


def test_of_another_machine_nothing_is_known(home):
    change(home, pid=2**22 + 1, host="elsewhere")
    assert read_own_url(home) == URL

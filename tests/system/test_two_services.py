"""Two services on one database: one leads, the other waits, and takes over when that is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from grids import Grid
from postgresql import PostgresqlServer, run_postgresql
from sqlalchemy import text
from test_drivers import find_steps, make_model, wait_for_more
from test_outer_ray import OuterRay, outer  # noqa: F401, a fixture
from waiting import wait_until

from eigensweep.service.record.leadership import HEARTBEAT_SECONDS
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SHORT: Any = {"prefix": "es-", "dir": "/tmp", "ignore_cleanup_errors": True}
"""So Ray's files lie in the home, too."""
GRID = Grid(trials=3, steps=400)
LEADS = text(
    "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@pytest.fixture
def postgresql() -> Iterator[PostgresqlServer]:
    with run_postgresql() as server:
        if server is None:
            pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
        yield server


@pytest.fixture
def pair(make_service: Any) -> Iterator[Any]:
    """Return what makes two services with a home each, one database and one store."""
    with ExitStack() as stack:

        def make(url: str | None = None) -> list[Any]:
            short = [tempfile.TemporaryDirectory(**SHORT) for _ in range(2)]
            folders = [Path(stack.enter_context(each)) for each in short]
            shared = {
                "database_url": url or f"sqlite:///{folders[0] / 'shared.db'}",
                "storage": str(folders[0] / "storage"),
                "checkpoint_seconds": "1",
                "cpus": "2",
            }
            made = [make_service(folder, **shared) for folder in folders]
            made[1].env["TOY_STEPS"] = made[0].env["TOY_STEPS"]
            for each in made:
                stack.callback(each.clear)
            return made

        yield make


def leader(service: Any) -> dict[str, Any]:
    """Return who leads, as a service says."""
    return service.get("/v1/cluster")["leader"] or {}


def is_leader(service: Any) -> bool:
    return leader(service).get("here", False)


def check(url: str, service: Any, ids: list[str], generations: list[int]) -> None:
    """Wait for the end of experiments; all trials are there, and nothing counted as a death."""
    for id in ids:
        assert service.wait(id)["state"] == "completed"
        trials = service.trials(id)
        assert [(trial["state"], trial["step"]) for trial in trials] == [
            ("completed", GRID.steps)
        ] * 3
    rows = [Record(url).row(id) for id in ids]
    assert [row.deaths for row in rows] == [0] * len(ids)
    assert [row.generation for row in rows] == generations


def test_the_second_waits_and_takes_over_from_a_killed_one(pair):
    first, second = pair()
    first.start()
    running = first.post(GRID.spec())["id"]
    second.start()
    assert is_leader(first)
    said = leader(second)
    assert (said["here"], said["pid"], said["address"]) == (False, first.process.pid, first.url)
    assert f"this service waits: {said['host']} pid {first.process.pid} at {first.url}" in str(
        second.get("/readyz")["checks"]["leader"]["detail"]
    )
    command = [sys.executable, "-m", "eigensweep.command.cli", "nodes", "--url", second.url]
    told = subprocess.run(command, capture_output=True, text=True, env=second.env, check=False)
    assert "this service waits" in told.stdout, told
    posted = second.post(GRID.spec(name="posted to who waits", seed=1))["id"]
    GRID.wait_for_steps(first, 30)
    assert second.experiment(running)["state"] == "running"
    assert second.find_part("raylet") == []
    first.kill()
    wait_until(lambda: is_leader(second), second.log.read_text)
    assert first.find_part("driver") == []
    check(second.database_url, second, [running, posted], [2, 2])
    first.start()
    assert leader(first)["pid"] == second.process.pid


def test_one_that_stood_still_goes_on_and_nobody_else_did(pair):
    first, second = pair()
    first.start()
    id = first.post(GRID.spec())["id"]
    GRID.wait_for_steps(first, 1)
    second.start()
    first.process.send_signal(signal.SIGSTOP)
    wait_until(
        lambda: leader(second)["heartbeat_seconds"] > 3 * HEARTBEAT_SECONDS, second.log.read_text
    )
    assert not is_leader(second)
    GRID.wait_for_steps(first, 1)  # its drivers go on
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: leader(second)["heartbeat_seconds"] < HEARTBEAT_SECONDS)
    check(first.database_url, first, [id], [1])
    assert (is_leader(first), is_leader(second)) == (True, False)


def test_one_that_lost_its_connection_standing_still_waits(pair, postgresql):
    url = postgresql.create_database("record")
    first, second = pair(url)
    first.start()
    running = first.post(GRID.spec())["id"]
    GRID.wait_for_steps(first, 1)
    second.start()
    first.process.send_signal(signal.SIGSTOP)
    with database.engine(url).begin() as connection:
        pid = connection.scalar(LEADS)
        connection.execute(text(f"SELECT pg_terminate_backend({pid})"))
    wait_until(lambda: is_leader(second), second.log.read_text)
    waiting = second.post(GRID.spec(name="another", seed=1))["id"]
    first.process.send_signal(signal.SIGCONT)
    wait_until(
        lambda: "starting anew, as a service that waits" in first.log.read_text(),
        first.log.read_text,
    )
    wait_until(first.is_ready, first.log.read_text)
    assert leader(first)["pid"] == second.process.pid
    assert first.find_part("driver") == []
    check(url, second, [running, waiting], [2, 1])
    assert psutil.pid_exists(first.process.pid)


def test_a_restarted_database_has_one_leader_and_no_failure(pair, postgresql):
    url = postgresql.create_database("record")
    first, second = pair(url)
    first.start()
    id = first.post(GRID.spec())["id"]
    GRID.wait_for_steps(first, 1)
    second.start()
    postgresql.stop()
    GRID.wait_for_steps(first, 1)
    postgresql.start()
    wait_until(
        lambda: (
            all(each.is_ready() for each in (first, second))
            and sorted(map(is_leader, (first, second))) == [False, True]
        ),
        lambda: first.log.read_text() + second.log.read_text(),
    )
    leads, waits = sorted((first, second), key=is_leader, reverse=True)
    assert leader(waits)["pid"] == leads.process.pid
    generation = 1 if leads is first else 2
    check(url, leads, [id], [generation])
    assert Path(f"/proc/{first.process.pid}").exists()


def test_the_next_leader_on_one_ray_finds_the_drivers(
    pair: Any,
    outer: OuterRay,  # noqa: F811
) -> None:
    first, second = pair()
    for each in (first, second):
        each.env |= {"EIGENSWEEP_RAY_ADDRESS": outer.address, "RAY_AUTH_MODE": "disabled"}
        each.env["EIGENSWEEP_MAX_EXPERIMENTS"] = "3"
    first.start()
    long = Grid(trials=1, steps=2500, evaluate=10)
    ids = [first.post(long.spec(name=str(n), model=make_model(n)))["id"] for n in range(2)]
    wait_until(lambda: min(find_steps(first, ids)) > 0, first.log.read_text)
    drivers = outer.list_drivers()
    assert len(drivers) == 2

    second.start()
    assert (is_leader(first), is_leader(second)) == (True, False)
    stays, rests = ids
    second.request(f"/v1/experiments/{rests}/pause", {})
    second.wait_for(rests, lambda found: found["state"] == "paused")
    wait_until(lambda: len(outer.list_drivers()) == 1, outer.list_drivers)
    second.request(f"/v1/experiments/{rests}/resume", {})
    wait_for_more(second, ids)
    assert [Record(first.database_url).row(id).generation for id in ids] == [1, 2]
    drivers = outer.list_drivers()
    assert len(drivers) == 2

    first.kill()
    wait_until(lambda: is_leader(second), second.log.read_text)
    wait_for_more(second, ids)
    assert outer.list_drivers() == drivers
    assert [Record(first.database_url).row(id).generation for id in ids] == [1, 2]
    first.start()
    assert not is_leader(first)
    first.request(f"/v1/experiments/{rests}/cancel", {})
    short = Grid(trials=1, steps=20, evaluate=10)
    posted = first.post(short.spec(name="posted to who waits", model=make_model(2)))["id"]
    assert first.wait(rests)["state"] == "cancelled"
    for id in (posted, stays):
        assert first.wait(id)["state"] == "completed"
        assert [len(trial["attempts"]) for trial in first.trials(id)] == [1]
    assert [Record(first.database_url).row(id).deaths for id in (*ids, posted)] == [0] * 3

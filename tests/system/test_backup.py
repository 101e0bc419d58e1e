"""A home that was copied while a real service worked in it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from helpers.grids import CHECKPOINT_SECONDS, Grid
from helpers.postgresql import run_postgresql

from eigensweep.service.record.sql import database

GRID = Grid(trials=6, steps=50)


def run_command(service: Any, *words: str) -> None:
    """Run the command line with the service's settings."""
    program = "from eigensweep.command.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=service.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backup_goes_on_elsewhere_to_the_same_end(service, make_service):
    """The machine is lost after the backup: record, store and MLflow of the copy are all whole."""
    check_backup(service, make_service, [], {})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backup_of_postgresql_goes_on_in_another_one(service, make_service):
    """Database and machine are lost: both are made of the copy, the store at another place."""
    with run_postgresql() as server:
        if server is None:
            pytest.skip("install PostgreSQL (initdb on PATH or in /usr/lib/postgresql) to run this")
        service.env["EIGENSWEEP_DATABASE_URL"] = server.create_database("lost")
        url, place = server.create_database("restored"), str(service.folder / "store of b")
        options = ["--database-url", url, "--storage", place]
        check_backup(service, make_service, options, {"database_url": url, "storage": place})
        for each in (url, service.database_url):
            database.engine(each).dispose()


def check_backup(
    service: Any, make_service: Any, options: list[str], settings: dict[str, str]
) -> None:
    """Back up a service that trains, kill it, restore it with options, and see it to the end."""
    service.env["EIGENSWEEP_CHECKPOINT_SECONDS"] = str(CHECKPOINT_SECONDS)
    service.start()
    id = service.post(GRID.spec())["id"]
    third = GRID.trials * GRID.steps / 3
    service.wait_for(id, lambda found: found["progress"]["steps_done"] >= third)
    file, place = service.folder / "b.tar.gz", service.folder / "b"
    run_command(service, "backup", str(file))
    service.kill()
    service.wait_until_alone()
    place.mkdir(mode=0o700)
    run_command(service, "restore", str(file), "--home", str(place / "home"), *options)
    restored = make_service(place, **settings)
    try:
        restored.start()
        assert len(restored.trials(id)) > 0
        GRID.check_results(restored, id)
        restored.stop()
        restored.wait_until_alone()
    finally:
        restored.clear()

"""A home that was copied while a real service worked in it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from grids import CHECKPOINT_SECONDS, Grid

GRID = Grid(trials=6, steps=50)


def run_command(service: Any, *words: str) -> None:
    """Run the command line with the service's settings."""
    program = "from eigensweep.service.command.cli import main; main()"
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, env=service.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_backup_goes_on_elsewhere_to_the_same_end(service, make_service):
    """The machine is lost after the backup: record, store and MLflow of the copy are all whole."""
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
    run_command(service, "restore", str(file), "--home", str(place / "home"))
    restored = make_service(place)
    try:
        restored.start()
        assert len(restored.trials(id)) > 0
        GRID.check_results(restored, id)
        restored.stop()
        restored.wait_until_alone()
    finally:
        restored.clear()

"""A shared folder that hangs, under a real service: nothing is lost, and who asks is told."""

from __future__ import annotations

import json
import os
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from helpers.grids import Grid
from helpers.waiting import wait_until

HANGING = Path(__file__).parents[1] / "plugins/hanging"
GRID = Grid(trials=2, steps=300)


def ask(service: Any, path: str) -> tuple[int, Any]:
    """Return the status and the body of an answer, whatever the status."""
    try:
        return 200, service.get(path)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_goes_on_when_it_is_back_and_it_answers_meanwhile(service):
    flag, folder = service.folder / "hangs", service.folder / "home/storage"
    service.env |= {"EIGENSWEEP_CPUS": "2", "HANGING_FOLDER": str(folder), "HANGS": str(flag)}
    service.env["PYTHONPATH"] = os.pathsep.join((str(HANGING), service.env["PYTHONPATH"]))
    id = GRID.begin(service)
    flag.touch()
    wait_until(lambda: ask(service, "/readyz")[0] == 503, service.log.read_text)
    status, found = ask(service, "/readyz")
    assert [name for name, each in found["checks"].items() if not each["ready"]] == ["store"]
    assert "the store has not answered since" in found["checks"]["store"]["detail"]
    for _ in range(12):  # as a page does that is left open; the service has six threads for reads
        status, found = ask(service, f"/v1/experiments/{id}/curves")
        assert status == 503, found
        assert ask(service, "/v1/experiments")[0] == 200
    other = service.post(GRID.spec(name="posted meanwhile"))["id"]
    service.request(f"/v1/experiments/{other}/cancel", {})
    flag.unlink()
    wait_until(lambda: ask(service, "/readyz")[0] == 200, service.log.read_text)
    GRID.check(service, id)
    assert [len(trial["attempts"]) for trial in service.trials(id)] == [1, 1]
    assert service.wait(other)["state"] == "cancelled"
    service.stop()

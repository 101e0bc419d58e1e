"""Whatever dies in the middle of a pause, the pause is finished, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from grids import CHECKPOINT_SECONDS, Grid
from waiting import wait_until

GRID = Grid(trials=2, steps=50, seconds=0.5)
"""A step takes half a second, and a trial sees only then that it is to pause."""


def kill(service: Any, kind: str) -> None:
    """End the driver, or the service with all that it started, which then starts anew."""
    if kind == "driver":
        wait_until(lambda: service.find_part("driver"))[0].kill()
        return
    service.kill()
    service.wait_until_alone()
    service.start()


def count_steps(service: Any) -> int:
    """Return how many steps all trials have taken so far."""
    return sum(len(file.read_text().splitlines()) for file in service.steps.iterdir())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pause_whose_driver_and_service_die_is_finished(service):
    service.env["EIGENSWEEP_CHECKPOINT_SECONDS"] = str(CHECKPOINT_SECONDS)
    service.start()
    id = service.post(GRID.spec())["id"]
    for taken, kind in ((20, "driver"), (60, "service")):
        wait_until(lambda n=taken: count_steps(service) >= n, lambda: count_steps(service))
        asked = service.request(f"/v1/experiments/{id}/pause", {})
        kill(service, kind)
        assert asked["state"] == "pausing"
        paused = service.wait_for(id, lambda found: found["state"] == "paused")
        assert paused["progress"]["running"] == 0
        service.request(f"/v1/experiments/{id}/resume", {})
    GRID.check(service, id)
    assert {len(trial["attempts"]) for trial in service.trials(id)} == {3}
    service.stop()
    service.wait_until_alone()

"""Several experiments at once, each with a driver of its own: cancelled, killed, paused."""

from __future__ import annotations

from typing import Any

import psutil
import pytest
from grids import CHECKPOINT_SECONDS, Grid
from waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GRID = Grid(trials=2, steps=100)
LONGER = Grid(trials=2, steps=250)
ONCE = {"limits": {"concurrency": 1}}
SIDE_BY_SIDE = {
    "EIGENSWEEP_MAX_EXPERIMENTS": "3",
    "EIGENSWEEP_CHECKPOINT_SECONDS": str(CHECKPOINT_SECONDS),
}


def make_model(number: int) -> dict[str, Any]:
    """Return a model whose results no other experiment takes over."""
    return {"name": "toy_slow", "hidden_size": 4, "seconds": 0.1 + number / 1000}


def find_steps(service: Any, ids: list[str]) -> list[int]:
    """Return how many steps the trials of each experiment have reported."""
    return [service.experiment(id)["progress"]["steps_done"] for id in ids]


def find_drivers(service: Any) -> dict[str, int]:
    """Return the process id of each experiment's driver, as the service says."""
    listed = service.get("/v1/cluster")["drivers"]["processes"]
    return {id: each["pid"] for each in listed for id in each["experiments"] if each["pid"]}


def post(service: Any, number: int, grid: Grid = GRID) -> str:
    """Post an experiment of one trial at a time; return its id."""
    id: str = service.post(grid.spec(model=make_model(number), **ONCE))["id"]
    return id


def wait_for_more(service: Any, ids: list[str]) -> None:
    """Wait until each of some experiments has come on."""
    reached = find_steps(service, ids)
    wait_until(
        lambda: all(a > b for a, b in zip(find_steps(service, ids), reached, strict=True)),
        lambda: service.log.read_text()[-4000:],
    )


def test_of_three_at_once_one_is_cancelled_and_one_killed(service):
    service.env |= SIDE_BY_SIDE | {"EIGENSWEEP_CPUS": "3"}
    service.start()
    ids = [post(service, number) for number in range(3)]
    wait_until(lambda: min(find_steps(service, ids)) > 0, service.log.read_text)
    drivers = find_drivers(service)
    assert {each.pid for each in service.find_part("driver")} == {*drivers.values()}
    assert len({*drivers.values()}) == 3

    killed, stays, cancelled = ids
    service.request(f"/v1/experiments/{cancelled}/cancel", {})
    assert service.wait(cancelled)["state"] == "cancelled"
    psutil.Process(drivers[killed]).kill()
    wait_for_more(service, [killed, stays])
    for id in (killed, stays):
        GRID.check_results(service, id)
    assert max(len(trial["attempts"]) for trial in service.trials(killed)) == 2
    assert [len(trial["attempts"]) for trial in service.trials(stays)] == [1, 1]
    assert "the driver's process ended by SIGKILL" in service.log.read_text()
    service.stop()
    service.wait_until_alone()


def test_one_pauses_and_goes_on_while_the_other_trains(service):
    service.env |= SIDE_BY_SIDE | {"EIGENSWEEP_CPUS": "2"}
    service.start()
    stays, rests = post(service, 0, LONGER), post(service, 1)
    wait_until(lambda: min(find_steps(service, [stays, rests])) > 0, service.log.read_text)
    drivers = find_drivers(service)
    service.request(f"/v1/experiments/{rests}/pause", {})
    paused = service.wait_for(rests, lambda found: found["state"] == "paused")
    assert paused["progress"]["running"] == 0
    wait_until(lambda: find_drivers(service) == {stays: drivers[stays]})
    wait_for_more(service, [stays])
    service.request(f"/v1/experiments/{rests}/resume", {})
    LONGER.check_results(service, stays)
    GRID.check_results(service, rests)
    assert [len(trial["attempts"]) for trial in service.trials(stays)] == [1, 1]
    assert sum(len(trial["attempts"]) for trial in service.trials(rests)) <= 3
    service.stop()
    service.wait_until_alone()


@pytest.mark.parametrize("fault", ["killed", "stopped"])
def test_drivers_go_on_without_their_zygote(service, fault):
    service.env |= SIDE_BY_SIDE | {"EIGENSWEEP_CPUS": "2"}
    service.start()
    first = post(service, 0, LONGER)
    wait_until(lambda: min(find_steps(service, [first])) > 0, service.log.read_text)
    (zygote,) = service.find_part("zygote")
    zygote.kill() if fault == "killed" else zygote.suspend()
    second = post(service, 1)
    wait_until(lambda: min(find_steps(service, [second])) > 0, service.log.read_text)
    assert service.find_part("zygote") != [zygote]
    LONGER.check_results(service, first)
    GRID.check_results(service, second)
    assert [len(trial["attempts"]) for trial in service.trials(first)] == [1, 1]
    service.stop()
    service.wait_until_alone()

"""Small experiments in one driver: a real service, cancelled, killed and paused in the middle."""

from __future__ import annotations

from typing import Any

import pytest
from grids import CHECKPOINT_SECONDS, Grid
from waiting import wait_until

GRID = Grid(trials=2, steps=100)
LONGER = Grid(trials=2, steps=250)
ONCE = {"limits": {"concurrency": 1}}
SHARING = {
    "EIGENSWEEP_DRIVER_EXPERIMENTS": "3",
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


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_experiments_in_one_driver_of_which_one_is_cancelled_and_which_is_killed(service):
    service.env |= SHARING | {"EIGENSWEEP_CPUS": "3", "EIGENSWEEP_WARM_DRIVERS": "0"}
    service.start()
    first, second, third = (
        service.post(GRID.spec(model=make_model(n), **ONCE))["id"] for n in range(3)
    )
    wait_until(lambda: min(find_steps(service, [first, second, third])) > 0, service.log.read_text)
    (driver,) = service.find_part("driver")
    assert find_drivers(service) == dict.fromkeys((first, second, third), driver.pid)

    service.request(f"/v1/experiments/{third}/cancel", {})
    assert service.wait(third)["state"] == "cancelled"
    reached = find_steps(service, [first, second])
    wait_until(
        lambda: all(
            now > then
            for now, then in zip(find_steps(service, [first, second]), reached, strict=True)
        ),
        lambda: find_steps(service, [first, second]),
    )
    assert service.find_part("driver") == [driver]
    assert {t["attempt"] for id in (first, second) for t in service.trials(id)} <= {0, 1}

    driver.kill()
    for id in (first, second):
        GRID.check_results(service, id)
        assert {len(trial["attempts"]) for trial in service.trials(id)} >= {2}
    assert {service.experiment(id)["state"] for id in (first, second)} == {"completed"}
    assert "which several experiments shared" in service.log.read_text()
    service.stop()
    service.wait_until_alone()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_one_of_two_in_a_driver_that_had_waited_is_paused_goes_on_and_leaves_it_to_the_next(
    service,
):
    service.env |= SHARING | {"EIGENSWEEP_CPUS": "2", "EIGENSWEEP_WARM_DRIVERS": "1"}
    service.start()
    (driver,) = wait_until(lambda: service.find_part("driver"), service.log.read_text)
    stays, rests = (
        service.post(grid.spec(model=make_model(n), **ONCE))["id"]
        for n, grid in enumerate((LONGER, GRID))
    )
    wait_until(lambda: min(find_steps(service, [stays, rests])) > 0, service.log.read_text)
    assert find_drivers(service) == dict.fromkeys((stays, rests), driver.pid)

    service.request(f"/v1/experiments/{rests}/pause", {})
    paused = service.wait_for(rests, lambda found: found["state"] == "paused")
    assert paused["progress"]["running"] == 0
    assert find_drivers(service) == {stays: driver.pid}
    (reached,) = find_steps(service, [stays])
    wait_until(lambda: find_steps(service, [stays])[0] > reached, service.log.read_text)
    service.request(f"/v1/experiments/{rests}/resume", {})
    LONGER.check_results(service, stays)
    GRID.check_results(service, rests)
    assert [len(trial["attempts"]) for trial in service.trials(stays)] == [1, 1]
    assert sum(len(trial["attempts"]) for trial in service.trials(rests)) <= 3

    for id in (stays, rests):  # their driver draws plots until then
        service.wait_for(id, lambda found: found["delivered"])
    after = service.post(GRID.spec(model=make_model(2), **ONCE))["id"]
    wait_until(lambda: find_drivers(service).get(after), service.log.read_text)
    assert find_drivers(service) == {after: driver.pid}
    GRID.check_results(service, after)
    assert service.find_part("driver") == [driver]
    service.stop()
    service.wait_until_alone()

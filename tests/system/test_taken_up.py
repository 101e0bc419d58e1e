"""Experiments that are retried, extended and deleted, on a real service, Ray and MLflow."""

from __future__ import annotations

import urllib.error
from http import HTTPStatus
from typing import Any

import pytest
from helpers.grids import Grid
from helpers.waiting import wait_until
from mlflow import MlflowClient

GRID = Grid(trials=3, steps=50, seconds=0.02)
EXTENDED = Grid(trials=4, steps=100, seconds=0.02)
"""The same grid, wider and with a longer budget."""


def states(service: Any, id: str) -> list[str]:
    return [trial["state"] for trial in service.trials(id)]


def count_steps(service: Any, trials: int) -> list[int]:
    """Return how many steps of training each trial has taken, in all of its attempts."""
    return [len((service.steps / str(n)).read_text().splitlines()) for n in range(trials)]


def is_gone(service: Any, id: str) -> bool:
    try:
        service.experiment(id)
    except urllib.error.HTTPError as error:
        return error.code == HTTPStatus.NOT_FOUND
    return False


def find_runs(service: Any, id: str) -> Any:
    """Return the experiment's runs in MLflow that were not deleted."""
    client = MlflowClient(service.mlflow_uri())
    project = client.get_experiment_by_name("Default")
    assert project is not None
    return client.search_runs([project.experiment_id], f"tags.`eigensweep.experiment` = '{id}'")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_failed_ones_are_retried_all_extended_and_kills_clean(
    service,
):
    (service.steps / "1.fails").touch()
    service.start()
    id = service.post(GRID.spec())["id"]
    service.wait(id)
    assert states(service, id) == ["completed", "failed", "completed"]

    (service.steps / "1.fails").unlink()
    service.request(f"/v1/experiments/{id}/retry", {})
    service.wait_for(id, lambda found: found["state"] == "completed")
    assert states(service, id) == ["completed"] * 3
    assert count_steps(service, 3) == [50] * 3, "what had completed was trained again"

    service.request(f"/v1/experiments/{id}/extend", EXTENDED.spec())
    service.wait_for(id, lambda found: found["state"] == "completed")
    assert states(service, id) == ["completed"] * 4
    assert count_steps(service, 4) == [100] * 4, "training did not go on from the checkpoints"
    EXTENDED.check_curves(service, id)

    other = service.post({**GRID.spec(), "name": "another one"})["id"]
    service.wait(other)
    service.request(f"/v1/experiments/{id}/delete", {"confirm": True})
    service.kill()
    service.wait_until_alone()
    service.start()
    wait_until(lambda: is_gone(service, id), service.log.read_text)
    assert not (service.storage / id).exists()
    assert not find_runs(service, id)
    assert len(find_runs(service, other)) == GRID.trials + 1
    assert states(service, other) == ["completed"] * 3
    service.stop()
    service.wait_until_alone()

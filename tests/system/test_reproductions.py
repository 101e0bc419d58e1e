"""A reproduction in a real service: it outlives a kill, and its report stands on MLflow's runs."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.links import run_id_of
from helpers.waiting import wait_until
from mlflow import MlflowClient

from eigensweep.reports.messages import FILES
from eigensweep.search_spaces.shipped.reproductions import load_suite

NAME = "enrnn/figure-4"
SEEDS = load_suite(NAME).analyses["maps"].times
"""An analysis of each."""


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_reproduction_outlives_a_kill_and_is_in_mlflow(service: Any) -> None:
    service.start()
    posted = service.request("/v1/reproductions", {"name": NAME})
    path, id = posted["links"]["self"], posted["experiments"][0]["id"]

    def see() -> Any:
        return service.get(path)

    wait_until(lambda: see()["fraction"] > 0, see)
    service.kill()
    service.start()
    assert service.request("/v1/reproductions", {"name": NAME})["id"] == posted["id"]
    while (ended := see())["state"] in ("running", "reporting"):
        before = ended["fraction"], ended["state"]
        wait_until(lambda before=before: (see()["fraction"], see()["state"]) != before, see, 1.0)
    assert (ended["state"], ended["mlflow_problem"]) == ("finished", None), ended["error"]
    assert ended["experiments"][0]["id"] == id
    assert len(service.get("/v1/experiments")["items"]) == 1
    report = service.get(ended["links"]["report"]["json"])
    assert [made["problem"] for made in report["analyses"]] == [None] * SEEDS
    assert report["arms"][0]["seeds"] == SEEDS
    run_id = run_id_of(service.get(f"/v1/experiments/{id}")["links"]["run"])
    kept = MlflowClient(service.mlflow_uri()).list_artifacts(run_id, f"reproductions/{NAME}")
    assert {file.path.rpartition("/")[2] for file in kept} == set(FILES)
    service.stop()
    service.wait_until_alone()

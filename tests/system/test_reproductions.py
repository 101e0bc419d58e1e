"""A reproduction in a real service: it outlives a kill, and its report stands on MLflow's runs."""

from __future__ import annotations

from typing import Any

import pytest
from links import run_id_of
from mlflow import MlflowClient
from waiting import wait_until


@pytest.mark.slow
def test_a_reproduction_outlives_a_kill_and_its_report_is_in_mlflow(service: Any) -> None:
    service.start()
    posted = service.request("/v1/reproductions", {"name": "enrnn/figure-4"})
    path, id = posted["links"]["self"], posted["experiments"][0]["id"]

    def see() -> Any:
        return service.get(path)

    wait_until(lambda: see()["fraction"] > 0, see)
    service.kill()
    service.start()
    assert service.request("/v1/reproductions", {"name": "enrnn/figure-4"})["id"] == posted["id"]
    wait_until(lambda: see()["state"] not in ("running", "reporting"), see)

    ended = see()
    assert (ended["state"], ended["mlflow_problem"]) == ("finished", None), ended["error"]
    assert ended["experiments"][0]["id"] == id
    assert len(service.get("/v1/experiments")["items"]) == 1
    report = service.get(ended["links"]["report"]["json"])
    assert [made["problem"] for made in report["analyses"]] == [None] * 3
    assert report["arms"][0]["seeds"] == 3
    run_id = run_id_of(service.get(f"/v1/experiments/{id}")["links"]["run"])
    kept = MlflowClient(service.mlflow_uri()).list_artifacts(run_id, "reproductions/enrnn/figure-4")
    assert {file.path.rpartition("/")[2] for file in kept} == {
        "figure.svg",
        "report.html",
        "report.json",
        "report.md",
    }
    service.stop()
    service.wait_until_alone()

"""An analysis in a real service: begun again after a kill, and an artifact on the trial's run."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.links import run_id_of
from helpers.waiting import wait_until
from mlflow import MlflowClient

SPEC: dict[str, Any] = {
    "name": "one",
    "task": {"name": "adding", "length": 12, "train_size": 500, "valid_size": 20, "test_size": 20},
    "model": {"name": "enrnn", "hidden_size": 8, "short_size": 4, "negative_ones": 1},
    "training": {"steps": 20, "evaluate_every": 10},
}


def wait_for(service: Any, id: str, *states: str) -> dict[str, Any]:
    """Return the analysis once it is in one of the states."""

    def find() -> Any:
        found = service.get(f"/v1/analyses/{id}")
        return found if found["state"] in states else None

    return wait_until(find, lambda: service.get(f"/v1/analyses/{id}"), pause=0.05)


@pytest.mark.slow
def test_an_analysis_outlives_a_kill_and_is_in_mlflow(service: Any) -> None:
    service.start()
    of = service.wait(service.post(SPEC)["id"])
    wait_until(lambda: service.trials(of["id"])[0]["links"]["mlflow"])  # else it is not delivered
    request = {"name": "gradient_norms", "experiment": of["id"], "trial": 0}
    id = service.request("/v1/analyses", request)["id"]
    wait_for(service, id, "running")

    service.kill()
    service.start()
    found = wait_for(service, id, "finished", "failed")

    assert (found["error"], found["mlflow_problem"]) == (None, None)
    run_id = run_id_of(service.trials(of["id"])[0]["links"]["mlflow"])
    assert run_id_of(found["links"]["mlflow"]) == run_id
    folder = f"analyses/gradient_norms-{id}"
    kept = MlflowClient(service.mlflow_uri()).list_artifacts(run_id, folder)
    assert [file.path.rpartition("/")[2] for file in kept] == [
        "figure.png",
        "figure.svg",
        "result.json",
        "table.csv",
    ]
    service.stop()
    service.wait_until_alone()

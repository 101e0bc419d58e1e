"""An analysis in a real service: begun again after a kill, and an artifact on the trial's run."""

from __future__ import annotations

import time
from typing import Any

import pytest
from mlflow import MlflowClient

SPEC: dict[str, Any] = {
    "name": "one",
    "task": {"name": "adding", "length": 12, "train_size": 500, "valid_size": 20, "test_size": 20},
    "model": {"name": "enrnn", "hidden_size": 8, "short_size": 4, "negative_ones": 1},
    "training": {"steps": 20, "evaluate_every": 10},
}


def wait_for(service: Any, id: str, *states: str, seconds: float = 180) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found: dict[str, Any] = service.get(f"/v1/analyses/{id}")
        if found["state"] in states:
            return found
        time.sleep(0.05)
    raise AssertionError(f"still {found['state']}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_analysis_outlives_a_kill_and_stands_on_its_trial_s_run_in_mlflow(service: Any) -> None:
    service.start()
    of = service.wait(service.post(SPEC)["id"])
    request = {"name": "gradient_norms", "experiment": of["id"], "trial": 0}
    id = service.request("/v1/analyses", request)["id"]
    wait_for(service, id, "running")

    service.kill()
    service.start()
    found = wait_for(service, id, "finished", "failed")

    assert (found["error"], found["mlflow_problem"]) == (None, None)
    run_id = service.trials(of["id"])[0]["links"]["mlflow"].rpartition("/")[2]
    assert found["links"]["mlflow"].endswith(run_id)
    folder = f"analyses/gradient_norms-{id}"
    kept = MlflowClient(service.mlflow_uri()).list_artifacts(run_id, folder)
    assert [file.path.rpartition("/")[2] for file in kept] == [
        "figure.png",
        "figure.svg",
        "result.json",
        "table.csv",
    ]
    service.stop()
    assert service.alone() == []

"""Whatever is killed, each point of a grid is finished exactly once and every curve is whole."""

from __future__ import annotations

import random
from typing import Any

import pytest
from mlflow import MlflowClient
from waiting import wait_until

STEPS, EVERY, LOG = 60, 10, 5
TRIALS = 12

GRID: dict[str, Any] = {
    "name": "killed",
    "task": {
        "name": "copying",
        "delay": 4,
        "symbols": 2,
        "batch_size": 4,
        "train_size": None,
        "valid_size": 8,
        "test_size": 8,
    },
    "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.03},
    "search": {
        "method": "grid",
        "space": {"model.shade": list(range(4)), "optimizer.lr": [1e-2, 1e-3, 1e-4]},
    },
    "training": {"steps": STEPS, "evaluate_every": EVERY, "log_every": LOG},
}


def victims(service: Any, kind: str) -> list[Any]:
    if kind == "service":
        return [service.process]
    word = {"driver": "Driver", "trial": "Trial"}[kind]
    return [p for p in service.find_named("ray::") if word.lower() in " ".join(p.cmdline()).lower()]


def kill_one(service: Any, kind: str, dice: random.Random) -> None:
    """Kill -9 one process of that kind, and start the service again if it was the one."""
    if kind == "service":
        service.kill()
        service.wait_until_alone()
        service.start()
        return
    found = wait_until(lambda: victims(service, kind), lambda: f"no {kind} process")
    dice.choice(found).kill()


def wait_for_steps(service: Any, id: str, steps: float) -> None:
    """Wait until the experiment has taken so many optimizer steps."""
    service.wait_for(id, lambda found: found["progress"]["steps_done"] >= steps)


def curves(service: Any, trials: list[dict[str, Any]]) -> None:
    """Assert that MLflow holds one finished run for each trial, with whole curves."""
    client = MlflowClient(service.mlflow_uri())
    experiment = client.get_experiment_by_name("Default")
    assert experiment is not None

    def find_runs() -> Any:
        return client.search_runs([experiment.experiment_id], max_results=1000)

    wait_until(lambda: {r.info.status for r in find_runs()} == {"FINISHED"}, find_runs, pause=0.5)
    runs = find_runs()
    nested = [r for r in runs if "mlflow.parentRunId" in r.data.tags]
    assert len(runs) == len(nested) + 1
    assert len(nested) == len(trials)
    assert len({r.data.tags["eigensweep.trial"] for r in nested}) == len(trials)
    for run in nested:
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "train/cross_entropy")]
        assert sorted(steps) == list(range(LOG, STEPS + 1, LOG))
        steps = [m.step for m in client.get_metric_history(run.info.run_id, "valid/cross_entropy")]
        assert [s for s in sorted(steps) if s] == list(range(EVERY, STEPS + 1, EVERY))


@pytest.mark.parametrize(
    ("seed", "kinds"),
    [
        pytest.param(1, ["trial", "driver", "service"], id="one of each"),
        pytest.param(
            2,
            ["service", "trial", "driver", "trial", "driver", "service"],
            id="many",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.timeout(1800)
def test_a_grid_is_finished_exactly_once_whatever_is_killed(service, seed, kinds):
    dice = random.Random(seed)
    service.start()
    id = service.post(GRID)["id"]
    share = TRIALS * STEPS / (len(kinds) + 1)
    for number, kind in enumerate(kinds):
        wait_for_steps(service, id, share * (number + dice.random()))
        kill_one(service, kind, dice)
    assert service.wait(id)["state"] == "completed"
    trials = service.trials(id)
    assert [t["number"] for t in trials] == list(range(TRIALS))
    assert {t["state"] for t in trials} == {"completed"}
    assert len({t["hash"] for t in trials}) == TRIALS
    assert all([r["step"] for r in t["reports"]][-1] == STEPS for t in trials)
    curves(service, trials)
    service.stop()
    service.wait_until_alone()

"""Each way in which a trial can end, by a real run, seen in the API, in Optuna and in MLflow."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from helpers.links import run_id_of
from helpers.waiting import wait_until
from mlflow import MlflowClient
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from eigensweep import Client

TASK: dict[str, Any] = {
    "name": "copying",
    "delay": 4,
    "symbols": 2,
    "batch_size": 4,
    "train_size": None,
    "valid_size": 8,
    "test_size": 8,
}
TRAINING: dict[str, Any] = {"steps": 40, "evaluate_every": 5, "log_every": 5}
TANH: dict[str, Any] = {"name": "tanh_rnn", "hidden_size": 4}


def spec(model: dict[str, Any], space: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "task": TASK,
        "model": model,
        "search": {"method": "grid", "space": space},
        "training": TRAINING,
        **more,
    }


EXPERIMENTS: dict[str, dict[str, Any]] = {
    "completed": spec(TANH, {"optimizer.lr": [1e-2, 1e-3]}),
    "overflow": spec(
        {"name": "toy_overflow", "hidden_size": 4, "growth": 1e8}, {"optimizer.lr": [1e-3]}
    ),
    "explode": spec(TANH, {"optimizer.lr": [100.0]}),
    "bug": spec({"name": "toy_bug", "hidden_size": 4}, {"optimizer.lr": [1e-3]}),
    "asha": spec(
        {"name": "scornn", "hidden_size": 4},
        {"optimizer.lr": [1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6], "model.negative_ones": [2, 99]},
        scheduler={
            "name": "asha",
            "rung_every": 5,
            "min_steps": 5,
            "reduction_factor": 2,
            "margin": None,
        },
        limits={"concurrency": 1},
    ),
}


@pytest.fixture(scope="module")
def running(shared_service: Any) -> Any:
    """Return a service for all of the experiments."""
    service = shared_service
    service.env["EIGENSWEEP_MAX_EXPERIMENTS"] = "3"
    service.start()
    return service


def post(service: Any, *names: str) -> list[str]:
    """Post experiments, all at once; return their ids."""
    return [service.post({"name": name, **EXPERIMENTS[name]})["id"] for name in names]


def run_of(service: Any, trial: dict[str, Any]) -> Any:
    """Return the trial's MLflow run, once it has ended."""
    client = MlflowClient(service.mlflow_uri())

    def find() -> Any:
        link = service.get(trial["links"]["self"])["links"]["mlflow"]
        run = link and client.get_run(run_id_of(link))
        return run if run and run.info.status != "RUNNING" else None

    return wait_until(find, lambda: f"no ended MLflow run of {trial}", pause=0.3)


def read_optuna(service: Any, id: str) -> dict[int, optuna.trial.FrozenTrial]:
    """Return what an export to Optuna says, by trial number."""
    file = service.folder / f"{id}.journal"
    with Client(service.url, token=service.token) as client:
        client.experiment(id).export(file)
    journal = JournalStorage(JournalFileBackend(str(file)))
    (study,) = optuna.get_all_study_names(journal)
    found = optuna.load_study(study_name=study, storage=journal)
    return {t.user_attrs["number"]: t for t in found.get_trials()}


def finite(run: Any) -> bool:
    return all(abs(v) < 1e300 for v in run.data.metrics.values())


class TestOutcomes:
    @pytest.mark.slow
    def test_completed_then_reused(self, running):
        (first,) = post(running, "completed")
        assert running.wait(first)["state"] == "completed"
        trials = running.trials(first)
        assert [t["state"] for t in trials] == ["completed"] * 2
        run = run_of(running, trials[0])
        assert (run.info.status, run.data.tags["eigensweep.outcome"]) == ("FINISHED", "completed")
        assert run.data.tags["eigensweep.device"].startswith("cpu on ")
        assert run.data.metrics["valid/cross_entropy"] == pytest.approx(
            trials[0]["reports"][-1]["metrics"]["valid/cross_entropy"]
        )
        optuna_trials = read_optuna(running, first)
        assert {n: t.state for n, t in optuna_trials.items()} == {
            0: TrialState.COMPLETE,
            1: TrialState.COMPLETE,
        }
        assert optuna_trials[0].value == pytest.approx(trials[0]["value"])

        again = running.post({"name": "again", **EXPERIMENTS["completed"]})["id"]
        assert running.wait(again)["state"] == "completed"
        copies = running.trials(again)
        assert [t["state"] for t in copies] == ["reused"] * 2
        assert [t["value"] for t in copies] == [t["value"] for t in trials]
        assert {t.state for t in read_optuna(running, again).values()} == {TrialState.COMPLETE}
        copy = run_of(running, copies[0])
        assert copy.data.tags["eigensweep.outcome"] == "reused"
        assert run.info.run_id in str(copy.data.tags)

    @pytest.mark.slow  # test_driver.py has the same without the service
    def test_diverged_to_infinity_and_with_a_finite_explosion(self, running):
        for found in post(running, "overflow", "explode"):
            assert running.wait(found)["state"] == "completed"
            (trial,) = running.trials(found)
            assert trial["state"] == "diverged"
            (remembered,) = read_optuna(running, found).values()
            assert remembered.state == TrialState.PRUNED
            run = run_of(running, trial)
            assert run.info.status == "FINISHED"
            assert run.data.tags["eigensweep.outcome"] == "diverged"
            assert finite(run)

    @pytest.mark.slow  # test_driver.py has the same without the service
    def test_a_bug_fails_with_its_traceback(self, running):
        (id,) = post(running, "bug")
        ended = running.wait(id)
        assert ended["state"] == "failed"
        (trial,) = running.trials(id)
        assert trial["state"] == "failed"
        assert trial["attempt"] == 1
        assert "LookupError: the toy's bug: there is no third pass" in trial["error"]
        (remembered,) = read_optuna(running, id).values()
        assert remembered.state == TrialState.FAIL
        run = run_of(running, trial)
        assert (run.info.status, run.data.tags["eigensweep.outcome"]) == ("FAILED", "failed")

    @pytest.mark.slow  # test_driver.py has the same without the service
    def test_asha_prunes_and_a_point_that_fits_no_config_is_invalid(self, running):
        (id,) = post(running, "asha")
        assert running.wait(id)["state"] == "completed"
        trials = running.trials(id)
        states = [t["state"] for t in trials]
        assert states.count("invalid") == 6
        assert states.count("pruned") >= 1
        assert states.count("completed") >= 1
        assert states.count("pruned") + states.count("completed") == 6
        assert "99" in next(t["error"] for t in trials if t["state"] == "invalid")
        remembered = read_optuna(running, id)
        for trial in trials:
            if trial["state"] == "pruned":
                assert trial["step"] < 40
                assert remembered[trial["number"]].state == TrialState.PRUNED
                run = run_of(running, trial)
                assert run.info.status == "FINISHED"
                assert run.data.tags["eigensweep.outcome"] == "pruned"

    @pytest.mark.slow  # test_driver.py has the same without the service
    def test_cancelled_by_a_person(self, running):
        slow = {"name": "toy_slow", "hidden_size": 4, "seconds": 0.2}
        endless = {"training": TRAINING | {"steps": 10**6}}
        body = {"name": "cancel", **spec(slow, {"model.shade": list(range(6))}, **endless)}
        id = running.post(body)["id"]
        running.wait_for(id, lambda found: found["progress"]["running"] > 0)
        running.request(f"/v1/experiments/{id}/cancel", {})
        assert running.wait(id)["state"] == "cancelled"
        trials = running.trials(id)
        assert trials
        assert {t["state"] for t in trials} == {"cancelled"}
        run = run_of(running, trials[0])
        assert (run.info.status, run.data.tags["eigensweep.outcome"]) == ("KILLED", "cancelled")
        assert TrialState.RUNNING not in {t.state for t in read_optuna(running, id).values()}

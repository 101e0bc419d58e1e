"""Real experiments on a real Ray: checked in the ledger, in Optuna and in MLflow."""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from experiments import Cluster, Launched, toys_on_path, wait_for
from file_ledger import FileLedger
from mlflow import MlflowClient
from optuna.trial import TrialState
from sweeps import COPYING, SCORNN
from test_export import read
from waiting import wait_until

from eigensweep.protocol.ledger import PAUSED
from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.process.mlflow_server import MlflowServer
from eigensweep.store.checkpoints import Store
from eigensweep.workers.cluster.ray_cluster import ClusterError
from eigensweep.workers.driver.experiment import run_experiment
from eigensweep.workers.driver.nodes.cordons import Cordons
from eigensweep.workers.driver.nodes.failures import MOST_IN_A_ROW
from eigensweep.workers.driver.summary.export import export_study

SLOW = {"name": "toy_slow", "hidden_size": 4, "seconds": 0.02}


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        port = attempt.getsockname()[1]
    server = MlflowServer(tmp_path_factory.mktemp("mlflow"), port)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", server.token)
        server.start()
        yield server.url
        server.stop()


@pytest.fixture(scope="module")
def cluster(mlflow_uri: str) -> Iterator[Cluster]:
    with toys_on_path():
        started = Cluster.start(num_cpus=2)
        yield started
        started.stop()


class Experiment(Launched):
    """One experiment, tracked in MLflow."""

    def __init__(self, cluster: Cluster, uri: str, folder: Path, spec: dict[str, Any]) -> None:
        id = folder.name.strip("_0123456789")[:40]
        super().__init__(cluster, folder, id, {"task": COPYING, **spec}, mlflow_uri=uri)
        self.client = MlflowClient(uri)

    def run_here(self) -> None:
        """Drive it in this process, which has loaded everything; not for the toys' specs."""
        seconds = sys.getswitchinterval()  # a driver has a process to itself, and sets this
        run_experiment(self.id, self.spec, self.ledger, self.options())
        sys.setswitchinterval(seconds)

    def states(self) -> dict[str, str]:
        return {e.arm: e.state for e in self.ledger.load()}

    def optuna(self) -> dict[int, Any]:
        """Return what an export to Optuna says of its trials, by number; not of toys."""
        spec = ExperimentSpec.model_validate(self.spec)
        content = export_study(self.id, spec, self.ledger.load(), {})
        return {t.user_attrs["number"]: t for t in read(content, self.folder).trials}

    def runs(self) -> dict[int | None, Any]:
        """Return the runs in MLflow by trial number, None for the parent; replicates left out."""
        project = self.client.get_experiment_by_name("Default").experiment_id
        found = self.client.search_runs([project], f"tags.`eigensweep.experiment` = '{self.id}'")
        own = [r for r in found if "eigensweep.replicate" not in r.data.tags]
        by_number = {
            int(n) if (n := r.data.tags.get("eigensweep.trial")) is not None else None: r
            for r in own
        }
        assert len(by_number) == len(own), "a run was made twice"
        return by_number

    def curve(self, run_id: str, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in self.client.get_metric_history(run_id, metric)]


@pytest.fixture
def experiment(
    cluster: Cluster, mlflow_uri: str, tmp_path: Path
) -> Callable[[dict[str, Any]], Experiment]:
    return lambda spec: Experiment(cluster, mlflow_uri, tmp_path, spec)


class TestOutcomes:
    def test_every_way_to_end_stands_in_ledger_and_mlflow(self, experiment):
        wild = {"name": "rmsprop", "lr": 100.0}
        exploding = {"name": "lstm", "hidden_size": 4}
        e = experiment(
            {
                "arms": [
                    {"model": {"name": "lstm", "hidden_size": 6}},
                    {"name": "exploding", "model": exploding, "optimizer": wild},
                    {"model": {"name": "toy_overflow", "hidden_size": 4}},
                    {"model": {"name": "toy_bug", "hidden_size": 4}},
                ],
                "divergence": {"factor": 1.5, "evaluations": 2},
                "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
            }
        )
        e.run()
        assert e.states() == {
            "lstm": "completed",
            "exploding": "diverged",
            "toy_overflow": "diverged",
            "toy_bug": "failed",
        }
        assert e.ledger.read("end") == ["completed", None]
        bug = e.ledger.load()[3]
        assert "LookupError: the toy's bug" in bug.error
        assert "eigensweep_toys.py" in bug.error
        runs = e.runs()
        assert [runs[n].info.status for n in range(4)] == ["FINISHED"] * 3 + ["FAILED"]
        outcomes = [runs[n].data.tags["eigensweep.outcome"] for n in range(4)]
        assert outcomes == ["completed", "diverged", "diverged", "failed"]
        devices = {runs[n].data.tags["eigensweep.device"] for n in range(4)}
        assert devices == {f"cpu on {platform.node()}"}
        assert {
            r.data.tags.get("mlflow.parentRunId") for n, r in runs.items() if n is not None
        } == {runs[None].info.run_id}
        self.check_completed_run(e, runs[0], runs[None])

    def check_completed_run(self, e: Experiment, run: Any, parent: Any) -> None:
        valid = e.curve(run.info.run_id, "valid/cross_entropy")
        assert [step for step, _ in valid if step] == [5, 10, 15, 20]
        result = e.ledger.load()[0].result
        assert run.data.metrics["objective"] == result.value == min(v for _, v in valid)
        assert run.data.params == {"model.name": "lstm", "model.hidden_size": "6"}
        assert run.info.run_name == "0 lstm"
        assert parent.data.params["task.delay"] == str(COPYING["delay"])
        assert run.data.metrics["baseline_ratio"] == result.value / result.baseline
        assert [a.path for a in e.client.list_artifacts(run.info.run_id)] == ["config.json"]
        assert parent.info.status == "FINISHED"
        assert parent.data.tags["eigensweep.best_trial"] == "0"
        kept = [a.path for a in e.client.list_artifacts(parent.info.run_id)]
        kept += [a.path for a in e.client.list_artifacts(parent.info.run_id, "best")]
        assert kept == ["best", "report", "spec.yaml", "best/best.pt", "best/config.json"]
        assert e.ledger.read("tracked") is True
        assert all(entry.tracked for entry in e.ledger.load())

    def test_asha_stops_what_is_worse_at_a_rung(self, experiment):
        e = experiment(
            {
                "model": SCORNN,
                "search": {"space": {"optimizer.lr": [1e-2, 1e-6, 1e-7]}},
                "training": {"steps": 30, "evaluate_every": 5},
                "scheduler": {"name": "asha", "rung_every": 5, "min_steps": 10, "margin": None},
                "limits": {"concurrency": 1},
            }
        )
        e.run_here()
        best, *worse = e.ledger.load()
        assert [t.state for t in (best, *worse)] == ["completed", "pruned", "pruned"]
        assert list(best.reports) == [5, 10, 15, 20, 25, 30]
        for trial in worse:
            assert list(trial.reports) == [5, 10]
            assert trial.result.step == 10
            told = e.optuna()[trial.number]
            assert (told.state, told.value) == (TrialState.PRUNED, trial.result.value)
            tags = e.runs()[trial.number].data.tags
            assert tags["eigensweep.outcome"] == "pruned"

    def test_replicates_have_runs_and_the_trial_is_their_mean(self, experiment):
        e = experiment({"model": SCORNN, "replicates": 3, "training": {"steps": 4}, "seed": 7})
        e.run_here()
        result = e.ledger.load()[0].result
        values = [r.value for r in result.by_replicate]
        assert result.value == pytest.approx(sum(values) / 3)
        assert len(set(values)) == 3
        trial = e.runs()[0].info.run_id
        project = e.client.get_experiment_by_name("Default").experiment_id
        nested = e.client.search_runs([project], f"tags.`mlflow.parentRunId` = '{trial}'")
        assert {r.data.tags["eigensweep.seed"] for r in nested} == {"7", "8", "9"}
        assert sorted(r.data.metrics["objective"] for r in nested) == sorted(values)
        assert {r.info.status for r in nested} == {"FINISHED"}


class TestKills:
    STEPS = 60

    def slow(self, experiment: Any, count: int, steps: int = STEPS) -> Experiment:
        return experiment(
            {
                "model": SLOW,
                "search": {"space": {"model.shade": list(range(count))}},
                "training": {"steps": steps, "evaluate_every": 10, "log_every": 5},
                "scheduler": {"rung_every": 10},
            }
        )

    @pytest.mark.slow
    def test_whatever_process_dies_each_trial_goes_on_and_ends_once(self, experiment):
        e = self.slow(experiment, 3)
        handle = e.launch()
        first = e.until(lambda: next((t for t in e.ledger.load() if t.reports), None))
        number = first.number
        os.kill(first.place.pid, signal.SIGKILL)
        e.until(lambda: any(h[:2] == ["begin", number] and h[2] == 2 for h in self.history(e)))
        reports = len(self.history(e, "report"))
        e.until(lambda: len(self.history(e, "report")) > reports)
        handle.kill()
        assert wait_for(handle) == "died"
        e.run()
        trials = e.ledger.load()
        assert [t.state for t in trials] == ["completed"] * 3
        assert sorted(h[1] for h in self.history(e, "finish")) == [0, 1, 2]
        assert trials[number].attempt >= 2
        reason = next(h[3] for h in self.history(e, "interrupt"))
        assert "has ended by SIGKILL" in reason
        self.check_curves(e)

    def test_a_paused_experiment_goes_on_as_if_never_paused(self, experiment):
        e = self.slow(experiment, 3)
        handle = e.launch()
        e.until(lambda: any(t.reports for t in e.ledger.load()))
        e.ledger.want("pause")
        e.finish(handle)
        assert e.ledger.read("end") is None
        assert self.history(e)[-1] == ["pause", "pause"]
        paused = e.ledger.load()
        assert "running" not in {t.state for t in paused}
        reasons = {h[3] for h in self.history(e, "interrupt")}
        assert reasons == {PAUSED}
        e.ledger.want("run")
        e.run()
        assert [t.state for t in e.ledger.load()] == ["completed"] * 3
        self.check_curves(e)

    @pytest.mark.slow
    def test_a_bug_of_all_trials_pauses_the_sweep(self, experiment):
        bug = {"name": "toy_bug", "hidden_size": 4}
        rates = [1e-1 / (1 + k) for k in range(200)]
        search = {"space": {"optimizer.lr": rates}}
        e = experiment({"model": bug, "search": search, "training": {"steps": 4}})
        e.finish(e.launch())
        assert e.ledger.read("end") is None
        assert self.history(e)[-1] == ["pause", "pause"]
        failed = [t for t in e.ledger.load() if t.state == "failed"]
        assert MOST_IN_A_ROW <= len(failed) < 60, "what trained at that moment may end"
        (notice,) = e.ledger.read("notices")
        assert "LookupError: the toy's bug" in notice["words"]
        e.ledger.want("run")
        e.finish(e.launch())
        assert self.history(e)[-1] == ["pause", "pause"]
        assert len([t for t in e.ledger.load() if t.state == "failed"]) >= 2 * MOST_IN_A_ROW

    def history(self, e: Experiment, kind: str | None = None) -> list[Any]:
        return [h for h in e.ledger.read("history") if kind in (None, h[0])]

    def check_curves(self, e: Experiment) -> None:
        store = Store(e.folder / "store")
        for number, run in e.runs().items():
            if number is None:
                continue
            steps = [s for s, _ in e.curve(run.info.run_id, "train/cross_entropy")]
            assert steps == list(range(5, self.STEPS + 1, 5))
            committed = [p.step for p in store.points(f"{e.id}/{number:05d}/0")]
            assert len(committed) == len(set(committed))
            assert list(e.ledger.load()[number].reports) == list(range(10, self.STEPS + 1, 10))

    def test_cancelling_ends_open_trials_everywhere_and_soon(self, experiment):
        e = self.slow(experiment, 4, steps=20_000)  # minutes, if nobody cancels them
        handle = e.launch()
        e.until(lambda: any(t.reports for t in e.ledger.load()))
        e.ledger.cancel()
        e.until(lambda: e.ledger.read("end"))
        assert wait_for(handle) == "ended", handle.death
        assert e.ledger.read("end") == ["cancelled", "cancelled on request"]
        open_ones = [t for t in e.ledger.load() if t.state == "cancelled"]
        assert open_ones
        for trial in open_ones:
            run = e.runs()[trial.number]
            assert run.info.status == "KILLED"
            assert run.data.tags["eigensweep.outcome"] == "cancelled"
        assert e.runs()[None].info.status == "KILLED"

    def test_a_trial_that_a_person_stops_makes_room_for_the_next(self, experiment):
        e = experiment(
            {
                "model": SLOW,
                "search": {"method": "grid", "space": {"model.seconds": [30.0, 0.0]}},
                "training": {"steps": 20, "evaluate_every": 1, "log_every": 1},
                "limits": {"concurrency": 1},
            }
        )
        handle = e.launch()
        e.until(lambda: any(t.state == "running" for t in e.ledger.load()))
        e.ledger.stop(0)
        assert wait_for(handle) == "ended", handle.death
        stopped, other = e.ledger.load()
        assert (stopped.state, stopped.error) == ("pruned", "stopped on request")
        assert (other.state, other.attempt) == ("completed", 1)
        assert e.ledger.read("end") == ["completed", None]
        tags = [e.runs()[number].data.tags["eigensweep.outcome"] for number in (0, 1)]
        assert tags == ["pruned", "completed"]

    def test_training_needs_no_mlflow_and_a_later_driver_delivers(self, experiment):
        e = experiment({"model": SCORNN, "training": {"steps": 4}})
        handle = e.launch(mlflow_uri="http://127.0.0.1:9")
        e.until(lambda: e.ledger.read("end"))
        assert e.ledger.read("end") == ["completed", None]
        assert e.ledger.read("tracked") is False
        assert handle.state() == "running"
        handle.kill()
        e.run_here()
        assert e.ledger.read("tracked") is True
        assert len(self.history(e, "begin")) == 1
        assert e.curve(e.runs()[0].info.run_id, "valid/cross_entropy")


class TestRace:
    """Two configurations that nothing can tell apart, and two that do not learn."""

    def make(self, experiment: Any, seconds: float, **fields: Any) -> Experiment:
        return experiment(
            {
                "model": SLOW | {"seconds": seconds},
                "search": {"space": {"model.shade": [0, 1], "optimizer.lr": [0.05, 1e-7]}},
                "training": {"steps": 30, "evaluate_every": 10, "log_every": 5},
                "scheduler": {"rung_every": 10},
                "replicates": 3,
                "racing": {"most": 6, "seeds": 2, "leaders": 2},
                **fields,
            }
        )

    def check(self, e: Experiment) -> list[int]:
        """Check that the leaders have six seeds, each trained once; return the leaders."""
        trials = e.ledger.load()
        assert [t.state for t in trials] == ["completed"] * 4
        leaders = [t.number for t in trials if t.params["optimizer.lr"] == 0.05]
        store = Store(e.folder / "store")
        for trial in trials:
            count = 6 if trial.number in leaders else 3
            assert [r.seed for r in trial.result.by_replicate] == list(range(count))
            for seed in range(6):
                key = f"{e.id}/{trial.number:05d}/{seed}"
                steps = [point.step for point in store.points(key)]
                assert len(steps) == len(set(steps))
                assert (steps[-1:] == [30]) == (seed < count)
            assert list(trial.reports) == [10, 20, 30]
        for trial in trials:
            run = e.runs()[trial.number].data
            assert run.metrics["n"] == trial.result.replicates
            assert run.metrics["objective"] == trial.result.value
        return leaders

    @pytest.mark.slow
    def test_leaders_train_more_seeds_and_no_seed_twice(self, experiment):
        e = self.make(experiment, seconds=0.0).run()
        leaders = self.check(e)
        store = Store(e.folder / "store")
        for number in leaders:
            attempts = [store.attempt(f"{e.id}/{number:05d}/{seed}") for seed in range(6)]
            assert attempts == [1, 1, 1, 2, 2, 3]
            assert e.ledger.load()[number].attempt == 3

    @pytest.mark.slow
    def test_new_seeds_train_in_the_lanes_of_an_engine(self, experiment):
        lanes = {"cpus": 2, "lanes": 3}
        e = self.make(experiment, seconds=0.0, resources=lanes).run()
        self.check(e)
        assert {t.place.lanes for t in e.ledger.load()} == {3}

    @pytest.mark.slow
    def test_a_driver_that_dies_in_a_race_is_replaced(self, experiment):
        e = self.make(experiment, seconds=0.01)
        handle = e.launch()
        e.until(lambda: any(t.earlier and t.state == "running" for t in e.ledger.load()))
        handle.kill()
        assert wait_for(handle) == "died"
        e.run()
        self.check(e)
        (number, *_), history = self.check(e), e.ledger.read("history")
        assert [h for h in history if h[0] == "reopen" and h[1] == number] == [
            ["reopen", number, 5, "seeds 3 to 4 of the race"],
            ["reopen", number, 6, "seed 5 of the race"],
        ]


@pytest.mark.slow
def test_a_trial_that_hangs_is_stalled_and_frees_its_slot(experiment):
    e = experiment(
        {
            "model": {"name": "toy_hang", "hidden_size": 4},
            "search": {"space": {"model.hangs": [True, False], "optimizer.lr": [0.1, 0.01]}},
            "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
            "limits": {"stall_seconds": 5, "concurrency": 1},
        }
    )
    e.finish(e.launch(checkpoint_seconds=1.0))
    trials = e.ledger.load()
    states = {t.state for t in trials if t.params["model.hangs"]}
    assert states == {"stalled"}
    assert {t.state for t in trials} == {"stalled", "completed"}
    assert [t.attempt for t in trials] == [1] * 4
    assert e.ledger.read("end") == ["completed", None]
    for trial in trials:
        run = e.runs()[trial.number]
        killed = trial.params["model.hangs"]
        assert run.info.status == ("KILLED" if killed else "FINISHED")
        assert run.data.tags["eigensweep.outcome"] == trial.state
        assert ("limits.stall_seconds" in (trial.error or "")) == killed


@pytest.mark.slow
def test_a_trial_that_hoards_memory_fails_alone_and_once(experiment):
    e = experiment(
        {
            "model": {"name": "toy_hoard", "hidden_size": 4},
            "search": {"space": {"model.megabytes": [100, 0]}},
            "training": {"steps": 40, "evaluate_every": 40, "log_every": 5},
            "resources": {"memory": "900 MB"},
        }
    )
    e.finish(e.launch())
    greedy, modest = e.ledger.load()
    assert (greedy.state, greedy.attempt) == ("failed", 1)
    assert greedy.error.startswith("MemoryLimitError: trial 0 held ")
    assert "its limit was 0.90 GB" in greedy.error
    assert (modest.state, modest.attempt) == ("completed", 1)
    assert e.ledger.read("end") == ["completed", None]
    assert e.runs()[0].info.status == "FAILED"


def test_a_goal_ends_the_search_with_its_best(experiment):
    space = {"model.seconds": [0.0, 30.0]}
    e = experiment(
        {
            "model": SLOW,
            "training": {"steps": 3},
            "search": {"method": "grid", "space": space},
            "limits": {"goal": 100.0},
        }
    )
    e.run()
    assert e.ledger.read("end") == ["completed", None]
    assert [trial.state for trial in e.ledger.load()] == ["completed", "cancelled"]
    (notice,) = e.ledger.read("notices")
    assert notice["kind"] == "limit"
    assert "(limits.goal: 100), 1 trial cut off" in notice["words"]


def test_a_trial_of_more_memory_than_any_node_is_refused(experiment):
    e = experiment({"model": SCORNN, "training": {"steps": 1}, "resources": {"memory": "9000 GB"}})
    e.run_here()
    state, error = e.ledger.read("end")
    assert state == "failed"
    assert "a trial needs 1 CPU, 9000.00 GB memory, and no node has that" in error


def test_another_service_finds_a_driver_among_rays_jobs(cluster, experiment, monkeypatch):
    e = experiment({"model": SLOW, "training": {"steps": 10_000}})
    handle = e.launch()
    monkeypatch.setattr(cluster, "_folder", None)  # as on a Ray of somebody else
    cluster._found = None

    def look() -> set[str]:
        cluster._found = cluster._found or None
        return set(cluster._find_drivers())

    wait_until(lambda: e.id in look())
    assert look() == {e.id}
    handle.kill()
    wait_until(lambda: cluster._find_drivers() == frozenset())


@pytest.mark.slow
def test_trials_wait_while_the_disk_is_nearly_full(experiment):
    e = experiment({"model": SCORNN, "training": {"steps": 4}})
    handle = e.launch(least_free_bytes=10**18)
    (notice,) = e.until(lambda: e.ledger.read("notices"))
    assert "EIGENSWEEP_LEAST_FREE_MB" in notice["words"]
    assert [t.state for t in e.ledger.load()] == ["waiting"]
    handle.kill()
    e.run()
    assert [t.state for t in e.ledger.load()] == ["completed"]
    assert e.ledger.read("notices") == []


@pytest.mark.slow
def test_the_last_trial_leaves_room_for_another_experiment(cluster, mlflow_uri, tmp_path):
    last = {"model": SLOW | {"seconds": 0.5}}
    long = {"arms": [{"model": SCORNN}, {"name": "last", **last}], "training": {"steps": 200}}
    short = {"model": SCORNN, "training": {"steps": 4}}
    experiments = []
    for name, spec in (("running", long), ("other", short)):
        (folder := tmp_path / name).mkdir()
        experiments.append(Experiment(cluster, mlflow_uri, folder, spec))
    running, other = experiments
    handle = running.launch()
    running.until(lambda: running.states().get("scornn") == "completed")
    other.run()
    assert running.states() == {"scornn": "completed", "last": "running"}
    handle.kill()


def test_a_trial_of_more_than_any_node_has_is_refused(experiment):
    e = experiment({"model": SCORNN, "training": {"steps": 1}, "resources": {"gpus": 1}})
    e.run_here()
    state, error = e.ledger.read("end")
    assert state == "failed"
    assert "a trial needs 1 CPU, 1 GPU" in error


def test_a_trial_that_waits_goes_where_it_may_go_by_now(experiment, monkeypatch):
    """Its only node is cordoned when it is handed out, and no other one ever comes."""
    find_avoided, asked = Cordons.list_avoided, []

    def avoid(cordons: Cordons, lost: Collection[str] = ()) -> tuple[str, ...]:
        asked.append(time.monotonic())
        if asked[-1] < asked[0] + 3.0:
            return (ray.nodes()[0]["NodeID"],)
        return find_avoided(cordons, lost)

    monkeypatch.setattr(Cordons, "list_avoided", avoid)
    e = experiment({"model": SCORNN, "training": {"steps": 4}, "limits": {"concurrency": 1}})
    e.run_here()
    (trial,) = e.ledger.load()
    assert (trial.state, trial.attempt) == ("completed", 1)
    assert asked[-1] > asked[0] + 3.0


def test_a_limit_of_time_cancels_with_words(tmp_path):
    ledger = FileLedger(tmp_path / "ledger.json")
    spec = {"task": COPYING, "model": SCORNN, "limits": {"wall_seconds": 1e-6}}
    spec["training"] = {"steps": 1}
    options = DriverOptions(storage=str(tmp_path / "store"))
    run_experiment("e1", spec, ledger, options)
    state, error = ledger.read("end")
    assert state == "cancelled"
    assert "limits.wall_seconds" in error
    assert ledger.load() == []


def test_a_cluster_that_is_not_there_is_said_so_at_once(free_port):
    with pytest.raises(ClusterError, match=r"no Ray answers at 127\.0\.0\.1"):
        Cluster.start(f"127.0.0.1:{free_port()}")


POPULATION: dict[str, Any] = {
    "task": COPYING,
    "model": SCORNN,
    "search": {"space": {"optimizer.lr": [1e-1, 1e-2, 1e-4, 1e-6]}},
    "scheduler": {"name": "pbt", "rung_every": 5, "margin": None, "quantile": 0.25},
    "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
}
"""Population-based training: four trials, replaced in three rounds."""


@pytest.fixture
def launched(cluster: Cluster, tmp_path: Path) -> Callable[..., Launched]:
    """Return what makes a population, which nothing tracks."""

    def make(id: str, **changes: Any) -> Launched:
        (tmp_path / id).mkdir()
        return Launched(cluster, tmp_path / id, id, {**POPULATION, **changes})

    return make


def curve(e: Launched, number: int) -> list[tuple[int, dict[str, float]]]:
    points = Store(e.folder / "store").points(f"{e.id}/{number:05d}/0")
    return [(point.step, point.metrics) for point in points]


def check_rounds(e: Launched) -> None:
    """Check that each replaced trial went on as recorded, and each other one as if alone."""
    trials = e.trials()
    assert [t.state for t in trials] == ["completed"] * 4
    ends = [step for kind, step, _ in (h for h in e.ledger.read("history") if h[0] == "round")]
    assert ends == sorted(set(ends)) == [5, 10, 15]
    for trial in trials:
        points = dict(curve(e, trial.number))
        shown = {step: m["param/optimizer.lr"] for step, m in points.items() if step % 5 == 0}
        expected, rate = {}, trial.params["optimizer.lr"]
        for step in range(0, 21, 5):
            expected[step] = rate
            changes = [t.params["optimizer.lr"] for t in trial.lineage if t.step == step]
            rate = changes[0] if changes else rate
        assert shown == expected
        assert trial.result.step == 20


@pytest.mark.slow  # test_population.py plays Ray
def test_four_trials_are_replaced_in_three_rounds(launched):
    e = launched("pbt")
    run_experiment(e.id, e.spec, e.ledger, e.options())
    check_rounds(e)
    trials = e.trials()
    replaced = {t.number: t.lineage for t in trials if t.lineage}
    assert sum(map(len, replaced.values())) == 3
    first = next(each for lineage in replaced.values() for each in lineage if each.step == 5)
    scores = {t.number: t.reports[5]["valid/cross_entropy"] for t in trials}
    worst = next(n for n, lineage in replaced.items() if first in lineage)
    assert (min(scores, key=scores.get), max(scores, key=scores.get)) == (first.source, worst)

    constant = next(t for t in trials if not t.lineage)
    rate = constant.params["optimizer.lr"]
    search = {"space": {"optimizer.lr": [rate]}}
    alone = launched("alone", search=search, scheduler={"name": "none"})
    run_experiment(alone.id, alone.spec, alone.ledger, alone.options())
    (same,) = alone.trials()
    assert same.result.value == constant.result.value
    without = [
        (step, {name: value for name, value in metrics.items() if not name.startswith("param/")})
        for step, metrics in curve(e, constant.number)
    ]
    assert without == curve(alone, 0)


@pytest.mark.slow  # test_population.py kills at every place, without Ray
def test_a_killed_driver_has_a_successor_that_decides_the_same(launched):
    whole, killed = (
        launched("whole", model=SLOW | {"seconds": 0.01}),
        launched("killed", model=SLOW | {"seconds": 0.01}),
    )
    whole.run()
    handle = killed.launch()
    killed.until(lambda: killed.ledger.read("round") >= 5)
    handle.kill()
    assert wait_for(handle) == "died"
    assert killed.ledger.read("round") < 15
    killed.run()
    for e in (whole, killed):
        check_rounds(e)
    assert [t.lineage for t in killed.trials()] == [t.lineage for t in whole.trials()]
    assert [t.result.value for t in killed.trials()] == [t.result.value for t in whole.trials()]
    for number in range(4):
        assert curve(killed, number) == curve(whole, number)


@pytest.mark.slow
def test_one_slot_is_enough(launched):
    e = launched("narrow", limits={"concurrency": 1})
    run_experiment(e.id, e.spec, e.ledger, e.options())
    check_rounds(e)

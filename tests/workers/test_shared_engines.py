"""Trials that share an engine, on a real Ray: the same results, and each ends by itself."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from experiments import Cluster, Launched
from sweeps import COPYING, SCORNN

from eigensweep.store.checkpoints import Store
from eigensweep.workers.processes.engine_actor import NAMESPACE

logger = logging.getLogger(__name__)

TESTS = Path(__file__).parents[1]

LANES = {"cpus": 1, "lanes": 3}

LONG = {
    "task": {**COPYING, "delay": 100},
    "training": {"steps": 600, "evaluate_every": 50, "log_every": 25},
    "scheduler": {"rung_every": 50},
}
"""Trials of some seconds, so that something can happen meanwhile."""


def rates(*exponents: float) -> dict[str, Any]:
    return {"space": {"optimizer.lr": [10.0**-e for e in exponents]}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray with room for one engine: it has one core."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS / 'helpers'}:{TESTS / 'plugins'}")
        patch.setenv("OMP_NUM_THREADS", "1")
        started = Cluster.start(num_cpus=1)
        yield started
        started.stop()


class Experiment(Launched):
    """One experiment; nothing is tracked."""

    def until_they_report(self, count: int) -> int:
        """Wait until so many trials have reported; return the process that trained them."""
        self.until(lambda: sum(bool(t.reports) for t in self.trials()) >= count)
        (pid,) = {t.place.pid for t in self.trials() if t.reports}
        return int(pid)

    def history(self, kind: str) -> list[Any]:
        return [h for h in self.ledger.read("history") if h[0] == kind]

    def states(self) -> list[str]:
        return [t.state for t in self.trials()]

    def check_curves(self) -> None:
        """Assert that every trial has each point once, and reported each rung."""
        training = self.spec["training"]
        store = Store(self.folder / "store")
        for trial in self.trials():
            points = store.points(f"{self.id}/{trial.number:05d}/0")
            steps = range(training["log_every"], training["steps"] + 1, training["log_every"])
            assert [p.step for p in points] == [0, *steps]
            assert sorted(trial.reports) == [
                s for s in steps if s % training["evaluate_every"] == 0
            ]


@pytest.fixture
def experiment(cluster: Cluster, tmp_path: Path) -> Callable[..., Experiment]:
    common = {"task": COPYING, "model": SCORNN, "resources": LANES}
    return lambda spec, id="e1": Experiment(cluster, tmp_path, id, {**common, **spec})


def loads_torch(process: psutil.Process) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False


@pytest.mark.slow
def test_a_sweep_has_the_same_results_with_lanes(experiment):
    sweep = {
        "search": rates(1, 2, 3, 4),
        "training": {"steps": 40, "evaluate_every": 10, "log_every": 5},
        "scheduler": {"rung_every": 10},
        "replicates": 2,
    }
    shared = experiment(sweep, "shared").run()
    alone = experiment({**sweep, "resources": {"cpus": 1}}, "alone").run()
    assert shared.states() == alone.states() == ["completed"] * 4
    for one, other in zip(shared.trials(), alone.trials(), strict=True):
        assert one.result.value == pytest.approx(other.result.value, rel=1e-4)
        assert one.result.test == pytest.approx(other.result.test, rel=1e-4)
        assert [r.seed for r in one.result.by_replicate] == [0, 1]
        assert sorted(one.reports) == sorted(other.reports) == [10, 20, 30, 40]
        assert (one.place.device, one.place.lanes, other.place.lanes) == ("cpu", 3, None)
        assert one.config_hash == other.config_hash
    assert len({t.place.pid for t in shared.trials()}) == 1


@pytest.mark.slow
def test_a_trial_that_diverges_or_has_a_bug_ends_alone(experiment):
    wild = {"name": "rmsprop", "lr": 100.0}
    e = experiment(
        {
            "model": None,
            "arms": [
                {"model": {"name": "lstm", "hidden_size": 4}},
                {
                    "name": "exploding",
                    "model": {"name": "lstm", "hidden_size": 4},
                    "optimizer": wild,
                },
                {"model": {"name": "toy_bug", "hidden_size": 4}},
                {"model": SCORNN},
            ],
            "divergence": {"factor": 1.5, "evaluations": 2},
            "training": {"steps": 20, "evaluate_every": 5},
        }
    ).run()
    assert e.states() == ["completed", "diverged", "failed", "completed"]
    assert "LookupError: the toy's bug" in e.trials()[2].error


@pytest.mark.slow
def test_a_trial_that_hangs_in_a_lane_ends_alone_and_stalled(experiment):
    e = experiment(
        {
            "model": {"name": "toy_hang", "hidden_size": 4},
            "search": {"space": {"model.hangs": [True, False]}},
            "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
            "limits": {"stall_seconds": 5},
        }
    )
    handle = e.launch(checkpoint_seconds=1.0)

    def lost() -> list[str]:
        """Return why each engine under the trial that hangs was given up."""
        (hung,) = (t.number for t in e.trials() if t.params["model.hangs"])
        return [h[3] for h in e.history("interrupt") if h[1] == hung]

    e.until(lambda: len(e.trials()) == 2)
    for count in (1, 2):  # an engine that gives no answer at all is waited for for two minutes
        e.until(lambda: len(lost()) >= count)  # noqa: B023
    e.finish(handle)
    assert {t.params["model.hangs"]: t.state for t in e.trials()} == {
        True: "stalled",
        False: "completed",
    }
    assert len(lost()) == 2, "two engines hung under it"


@pytest.mark.slow
def test_asha_prunes_trials_and_their_lanes_are_refilled(experiment):
    e = experiment(
        {
            "search": rates(2, 6, 7, 8, 6.5, 7.5, 8.5, 1.9),
            "training": {"steps": 60, "evaluate_every": 5},
            "scheduler": {"name": "asha", "rung_every": 5, "min_steps": 10, "margin": None},
        }
    ).run()
    pruned = [t for t in e.trials() if t.state == "pruned"]
    assert len(pruned) >= 3
    assert e.trials()[0].state == "completed"
    assert {t.state for t in e.trials()} == {"pruned", "completed"}
    for trial in pruned:
        assert trial.result.step == max(trial.reports) < 60


@pytest.mark.slow  # test_engine.py plays Ray
def test_a_killed_engine_costs_no_trial_and_no_retry(experiment):
    e = experiment({**LONG, "search": rates(1, 2, 3, 4, 5)})
    handle = e.launch(retries=0, checkpoint_seconds=0.5)
    engine = e.until_they_report(3)
    thin = [p for p in psutil.process_iter(["name"]) if "TrialProcess" in (p.info["name"] or "")]
    assert thin
    assert not any(loads_torch(p) for p in thin)
    os.kill(engine, signal.SIGKILL)
    e.finish(handle)
    assert e.states() == ["completed"] * 5
    assert len(e.history("interrupt")) >= 3
    assert "the engine that trained it died" in e.history("interrupt")[0][3]
    assert sorted(h[1] for h in e.history("finish")) == [0, 1, 2, 3, 4]
    e.check_curves()


@pytest.mark.slow
def test_cancelled_lanes_are_free_for_the_next_experiment(experiment):
    e = experiment({**LONG, "search": rates(1, 2, 3, 4)})
    e.spec["training"] = {**e.spec["training"], "steps": 1_000_000, "evaluate_every": 50}
    e.spec["scheduler"] = {"rung_every": 10_000}
    handle = e.launch()
    e.until(lambda: len(e.history("begin")) >= 3)
    e.ledger.cancel()
    e.finish(handle)
    assert e.ledger.read("end") == ["cancelled", "cancelled on request"]
    assert set(e.states()) == {"cancelled"}
    other = experiment({"search": rates(1, 2), "training": {"steps": 4}}, "other").run()
    assert other.states() == ["completed"] * 2


@pytest.mark.slow
def test_the_number_of_lanes_is_measured_once_and_remembered(experiment):
    sweep = {"search": rates(1, 2), "training": {"steps": 4}, "resources": {"lanes": "auto"}}
    first = experiment(sweep, "first").run()
    assert first.states() == ["completed"] * 2
    (kept,) = (first.folder / "store" / "lanes").iterdir()
    lanes = json.loads(kept.read_text())["lanes"]
    assert {t.place.lanes for t in first.trials()} == {lanes}
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "lanes": 5}))
    second = experiment({**sweep, "seed": 3}, "second").run()
    assert {t.place.lanes for t in second.trials()} == {5}


@pytest.mark.slow
def test_one_of_two_in_an_engine_may_lose_its_driver(experiment):
    halves = [{**LONG, "search": rates(*e), "limits": {"concurrency": 2}} for e in [(1, 2), (3, 4)]]
    first, second = experiment(halves[0], "first"), experiment(halves[1], "second")
    handles = [first.launch(), second.launch()]
    engines = {first.until_they_report(1), second.until_they_report(1)}
    assert len(engines) == 1
    handles[0].kill()
    second.finish(handles[1])
    assert [t.attempt for t in second.trials()] == [1, 1]
    assert {t.place.pid for t in second.trials()} == engines
    second.check_curves()
    first.run()
    assert first.states() == ["completed"] * 2
    first.check_curves()


@pytest.mark.slow
def test_lanes_are_rarely_idle_under_asha(experiment):
    e = experiment(
        {
            **LONG,
            "search": rates(*(1 + k / 8 for k in range(24))),
            "scheduler": {"name": "asha", "rung_every": 50, "min_steps": 50, "margin": None},
        }
    )
    handle = e.launch()
    e.until(lambda: e.history("finish"))
    (name,) = [
        actor["name"]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["name"].startswith("engine-")
    ]
    engine = ray.get_actor(name, NAMESPACE)
    before = ray.get(engine.occupancy.remote())
    e.finish(handle)
    after = ray.get(engine.occupancy.remote())
    spent = {kind: after[kind] - before[kind] for kind in after}
    assert "pruned" in e.states()
    idle = spent["idle_wanted"] / (spent["occupied"] + spent["idle_wanted"])
    logger.info("lane-seconds under ASHA: %s", spent)
    assert idle < 0.05, spent

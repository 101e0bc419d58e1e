"""A driver's process that several experiments share. Without Ray."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from eigensweep.workers.cluster import ray_cluster
from eigensweep.workers.cluster.crew import Crew
from eigensweep.workers.driver import experiment as driver
from eigensweep.workers.driver import trial_processes
from eigensweep.workers.shared import logs
from eigensweep.workers.shared.ledger import SupersededError
from eigensweep.workers.shared.messages import DriverOptions

OPTIONS = DriverOptions(storage="/s")
AWAY = ValueError("the ledger is away")


class Timer:
    """What would end the process; it notes whether it runs."""

    running = 0

    def __init__(self, *_: Any) -> None:
        self.daemon = False

    def start(self) -> None:
        Timer.running += 1

    def cancel(self) -> None:
        Timer.running = 0


class Runs:
    """Experiments that are driven until a test lets them end or fail."""

    def __init__(self) -> None:
        self.actor = ray_cluster.DriverActor()
        self._pool = ThreadPoolExecutor()
        self._begun: dict[str, threading.Event] = {}
        self._ends: dict[str, threading.Event] = {}
        self._fails: dict[str, Exception] = {}
        self._calls: dict[str, Any] = {}

    def drive(self, experiment: str, *_: Any) -> None:
        """Play the driver's function."""
        logging.getLogger("eigensweep.test").warning("drives")
        self._begun[experiment].set()
        self._ends[experiment].wait(60)
        if experiment in self._fails:
            raise RuntimeError("what Tune makes of it") from self._fails[experiment]

    def begin(self, experiment: str) -> None:
        self._begun[experiment], self._ends[experiment] = threading.Event(), threading.Event()
        run: Callable[..., None] = self.actor.run
        self._calls[experiment] = self._pool.submit(run, experiment, {}, None, OPTIONS)
        assert self._begun[experiment].wait(60)

    def end(self, experiment: str, fails: Exception | None = None) -> None:
        if fails is not None:
            self._fails[experiment] = fails
        self._ends[experiment].set()
        self._calls[experiment].result(60)

    def states(self) -> list[str]:
        return [self.actor.state(each)[0] for each in self._calls]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(ray_cluster, "has_changed", lambda: False)
    monkeypatch.setattr(ray_cluster.threading, "Timer", Timer)
    monkeypatch.setattr(Timer, "running", 0)
    monkeypatch.setattr(ray_cluster, "MOST_BYTES", 10**12)
    made = Runs()
    monkeypatch.setattr(driver, "run_experiment", made.drive)
    return made


def test_each_experiment_has_a_state_of_its_own_and_the_process_ends_after_the_last(runs):
    runs.begin("a")
    assert runs.actor.join("b")
    runs.begin("b")
    assert runs.states() == ["running", "running"]
    runs.end("a")
    assert runs.states() == ["ended", "running"]
    assert Timer.running == 0
    runs.end("b", fails=AWAY)
    assert runs.states() == ["ended", "died"]
    assert Timer.running == 1
    assert "the ledger is away" in str(runs.actor.state("b")[1])
    assert runs.actor.state("a")[1] is None


def test_one_that_has_a_successor_ends_and_did_not_die(runs, caplog):
    runs.begin("a")
    runs.end("a", fails=SupersededError("driver 1 of experiment a has a successor, driver 2"))
    state, death = runs.actor.state("a")
    assert (state, death.cause) == ("ended", "superseded")
    assert "driver 2" in death.words
    assert [record for record in caplog.records if record.exc_info] == []


def test_one_that_joins_keeps_the_process_from_ending(runs):
    runs.begin("a")
    runs.end("a")
    assert Timer.running == 1
    assert runs.actor.join("b")
    assert Timer.running == 1, "until it begins, in case that the service is gone"
    runs.begin("b")
    assert Timer.running == 0
    assert runs.actor.join("a"), "it was paused, and goes on"
    assert runs.states() == [None, "running"]


def test_a_process_takes_no_other_one_after_a_failure_or_with_other_code(runs, monkeypatch):
    runs.begin("a")
    assert not runs.actor.join("a"), "it has it"
    for name, value in (("has_changed", lambda: True), ("MOST_BYTES", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(ray_cluster, name, value)
            assert not runs.actor.join("b")
    runs.end("a", fails=AWAY)
    assert not runs.actor.join("b")


def test_after_it_waited_a_process_may_have_the_same_experiment_again(runs):
    runs.begin("a")
    runs.end("a")
    assert runs.actor.rest()
    assert runs.actor.state("a") == (None, None)


def test_one_that_waits_ends_by_itself_where_ray_outlives_the_service(runs, monkeypatch):
    monkeypatch.setattr(trial_processes, "load_ahead", lambda: None)
    assert Timer.running == 0, "our own Ray ends with the service, and this one with it"
    runs.actor = ray_cluster.DriverActor(is_leased=True)
    assert Timer.running == 1
    runs.actor.load_trials()
    assert Timer.running == 1, "as it is looked at, it waits longer"
    runs.actor.begin()
    assert Timer.running == 1, "the service may end before it says what to do"
    runs.begin("a")
    assert Timer.running == 0
    runs.actor.load_trials()
    assert Timer.running == 0
    runs.end("a")
    assert Timer.running == 1
    assert runs.actor.rest()
    assert Timer.running == 1


def test_lines_name_the_experiment_whose_thread_wrote_them(runs, monkeypatch):
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logs.make_formatter("json"))
    handler.addFilter(logs.add_subject)
    logger = logging.getLogger("eigensweep.test")
    monkeypatch.setattr(logger, "handlers", [handler])
    for experiment in ("a", "b"):
        runs.begin(experiment)
    for experiment in ("a", "b"):
        runs.end(experiment)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert sorted(line["experiment"] for line in lines) == ["a", "b"]


def test_the_last_one_ends_the_process_and_nobody_joins_after_it():
    crew = Crew()
    assert crew.join()
    assert [crew.leave(), crew.leave()] == [False, True]
    assert not crew.join()


def test_nobody_joins_where_one_has_failed():
    crew = Crew()
    assert crew.join()
    assert not crew.leave(failed=True)
    assert not crew.join()


@pytest.mark.parametrize(("aboard", "shared"), [(1, False), (3, True)])
def test_a_death_is_everybodys_only_where_several_shared_the_process(aboard, shared, monkeypatch):
    error = ray_cluster.ray.exceptions.RayActorError()
    monkeypatch.setattr(ray_cluster.ray, "get", lambda *_, **__: (_ for _ in ()).throw(error))
    ended: list[str] = []
    actor = SimpleNamespace(state=SimpleNamespace(remote=lambda experiment: experiment))
    process = SimpleNamespace(name="p", actor=actor, end=lambda: ended.append("p"))
    crew = Crew(aboard)
    handles = [
        ray_cluster.DriverHandle(str(n), process, _crew=crew)  # type: ignore[arg-type]
        for n in range(aboard)
    ]
    assert [handle.state() for handle in handles] == ["died"] * aboard
    assert {handle.death.cause == "shared" for handle in handles} == {shared}
    assert ended == ["p"]

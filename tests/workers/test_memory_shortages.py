"""A process that Ray ends because its node has no memory left is for Tune one that died."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from ray.air.execution._internal.actor_manager import RayActorManager, TrackedActor
from ray.exceptions import ActorDiedError, OutOfMemoryError
from ray.train._internal.storage import StorageContext
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import BasicVariantGenerator

from eigensweep.workers.deaths import LONGEST_SUMMARY, explain_shortage
from eigensweep.workers.driver.tune.actor_events import MemoryShortageError, translate
from eigensweep.workers.driver.tune.tune_loop import Controller

ACCOUNT = """1 worker(s) were killed due to the node running low on memory. It was 22GB used
Object store memory: [
- objects in use: 0]
Ray killed 1 worker(s) based on the killing policy
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
20121\t1.11\tray::Trial
Refer to the documentation on how to address the out of memory issue"""


class Task:
    """A call of a process's method, as Tune follows it."""

    def __init__(self) -> None:
        self.told: list[Exception] = []
        self._tracked_actor = TrackedActor(1, on_error=self.note)

    def note(self, actor: TrackedActor, error: Exception) -> None:
        self.told.append(error)

    _on_error = None


def make_manager(kind: type[RayActorManager], task: Task) -> RayActorManager:
    """Return Tune's manager of one process, which runs a task."""
    manager = kind(resource_manager=Mock())
    manager._live_actors_to_ray_actors_resources[task._tracked_actor] = (None, None)
    return manager


def test_tune_alone_gives_up_everything():
    with pytest.raises(RuntimeError, match="Caught unexpected exception"):
        make_manager(RayActorManager, Task())._actor_task_failed(Task(), OutOfMemoryError(ACCOUNT))


@pytest.mark.parametrize("where", ["start", "task"])
def test_tune_as_we_run_it_takes_it_for_a_process_that_died(monkeypatch, where, tmp_path):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")  # else it asks a running Ray
    storage = StorageContext(str(tmp_path), "here")
    search, scheduler = BasicVariantGenerator(), FIFOScheduler()
    ours = Controller(Mock(), search_alg=search, scheduler=scheduler, storage=storage)
    task = Task()
    manager = make_manager(type(ours._actor_manager), task)
    if where == "task":
        manager._actor_task_failed(task, OutOfMemoryError(ACCOUNT))
    else:
        manager._actor_start_failed(task._tracked_actor, OutOfMemoryError(ACCOUNT))
    (error,) = task.told
    assert isinstance(error, MemoryShortageError)
    assert "no memory left" in str(error)


def test_other_errors_stay_what_they_are():
    error = ActorDiedError()
    assert translate(error) is error


def test_the_account_names_what_was_taken_by_whom_and_is_short():
    words = explain_shortage(ACCOUNT)
    assert "It was 22GB used\nTop 10 memory users: PID" in words
    assert "20121\t1.11\tray::Trial" in words
    assert "objects in use" not in words
    assert "Refer to" not in words
    assert len(explain_shortage("x" * 10_000)) < LONGEST_SUMMARY + 100

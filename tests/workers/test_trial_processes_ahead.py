"""Processes that are ready for trials before there are any."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from experiments import Cluster, Launched, toys_on_path
from ray.tune.execution.class_cache import _ActorClassCache
from sweeps import COPYING, SCORNN
from waiting import wait_until

from eigensweep.workers.cluster import trial_processes
from eigensweep.workers.driver.tune.trainable import CREDENTIALS, choose_process
from eigensweep.workers.processes.forked import MODULE
from eigensweep.workers.processes.trial_process import TrialProcess

TESTS = Path(__file__).parents[1]


CHANGE = """
import sys
from pathlib import Path
from eigensweep.protocol.code import has_changed, own_code
own_code()
print(has_changed())
with Path(sys.argv[1]).open("a") as file:
    file.write("# one line more")
print(has_changed())
"""


def make_of_tune() -> Any:
    """Return the class of a trial's process as Tune makes it."""
    return _ActorClassCache().get(TrialProcess)  # type: ignore[no-untyped-call]


def test_trials_ask_for_what_ray_has_ready_for_anybody(monkeypatch):
    for each in CREDENTIALS:
        monkeypatch.delenv(each, raising=False)
    assert "runtime_env" not in choose_process(make_of_tune())._default_options


def test_the_credentials_of_a_driver_go_on_to_its_trials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k1")
    given = choose_process(make_of_tune())._default_options
    asked = given["runtime_env"]["env_vars"]
    assert asked["AWS_ACCESS_KEY_ID"] == "k1"


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_pytorch_is_loaded_for_the_threads_of_a_trial(given, threads, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = trial_processes._environment({"LD_PRELOAD": "jemalloc", **given})
    assert found == {**os.environ, **trial_processes.OF_RAY, "OMP_NUM_THREADS": threads}


def test_thin_processes_start_also_without_pytorch_loaded(monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise OSError("no memory")

    started: list[bool] = []
    monkeypatch.setattr(trial_processes, "has_changed", lambda: False)
    monkeypatch.setattr(trial_processes, "_find_raylet", os.getpid)
    monkeypatch.setattr(trial_processes, "keep_server", fail)
    monkeypatch.setattr(trial_processes, "_start_thin", lambda raylet: started.append(True))
    trial_processes.load_ahead()
    assert started == [True]
    assert "the first trial waits for it: no memory" in caplog.text


def test_nothing_is_loaded_beside_trials_or_long_after_them(monkeypatch):
    uses, loaded, clock = [True, False, False, False, True], [], iter(range(0, 100, 10))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] = next(clock)
        if not uses:
            raise KeyboardInterrupt

    played = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr(trial_processes, "time", played)
    monkeypatch.setattr(trial_processes, "IDLE_SECONDS", 1000.0)
    monkeypatch.setattr(trial_processes, "_is_used", lambda: uses.pop(0))
    monkeypatch.setattr(trial_processes, "load_ahead", lambda: loaded.append(len(uses)))
    with pytest.raises(KeyboardInterrupt):
        trial_processes.keep_ready()
    assert loaded == [1], "after two looks without a trial, and once a minute"
    uses += [False] * 5
    monkeypatch.setattr(trial_processes, "IDLE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trial_processes.keep_ready()
    assert loaded == [1]


def test_where_memory_is_short_nothing_waits(monkeypatch):
    monkeypatch.setattr(trial_processes, "BYTES", 10**15)
    trial_processes.keep_ready()  # would not return


def test_a_file_that_was_edited_is_noticed(tmp_path):
    plugins = shutil.copytree(TESTS / "plugins", tmp_path / "plugins")
    path = os.pathsep.join([str(plugins), str(TESTS.parent)])
    done = subprocess.run(
        [sys.executable, "-c", CHANGE, str(plugins / "eigensweep_toys.py")],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    # Ray starts thin processes for its first driver, too, and keeps them for a second only.
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    with toys_on_path():
        started = Cluster.start(num_cpus=2)
        yield started
        started.stop()


def find_servers() -> set[int]:
    """Return the ids of the processes that this Ray's trials are forked from, once loaded."""
    own = {each.pid for each in psutil.Process().children(recursive=True)}
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            command = process.cmdline()
            is_server = MODULE in command and MODULE not in process.parent().cmdline()
            if is_server and int(command[-2]) in own and has_torch(process):
                found.add(process.pid)
    return found


def has_torch(process: psutil.Process) -> bool:
    return any("libtorch" in part.path for part in process.memory_maps())


@pytest.mark.slow
def test_the_first_trials_of_an_experiment_get_what_is_ready(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(
        trial_processes, "LEAST_SECONDS", 3600
    )  # on a busy machine a driver is slow
    spec: dict[str, Any] = {
        "task": COPYING,
        "model": SCORNN,
        "search": {"method": "grid", "space": {"optimizer.lr": [1e-3, 1e-2]}},
        "limits": {"concurrency": 1},
        "training": {"steps": 2},
    }
    raylet = psutil.Process(trial_processes._find_raylet())
    assert "raylet" in raylet.name()

    def find_ready() -> set[int]:
        return set(trial_processes.find_ready(raylet))

    trial_processes.load_ahead()
    wait_until(lambda: len(find_servers()) == 1 and len(find_ready()) == 2)
    servers, ready = find_servers(), find_ready()
    experiment = Launched(cluster, tmp_path, "first", spec).run()
    assert [entry.state for entry in experiment.trials()] == ["completed"] * 2
    assert find_servers() == servers, "trials were forked from what had been loaded before"
    assert len(ready - find_ready()) == 1, "one of the thin processes had the trials"

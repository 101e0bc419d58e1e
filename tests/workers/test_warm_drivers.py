"""Drivers that wait for an experiment: who gets one, and who does not. Without Ray."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from eigensweep.workers.cluster.warm_drivers import WarmDrivers, count_that_fit

from eigensweep.workers.cluster import warm_drivers
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.driver import trial_processes
from eigensweep.workers.driver.trainable import CREDENTIALS, TrialProcesses

TESTS = Path(__file__).parents[1]

CHANGE = """
import sys
from pathlib import Path
from eigensweep.workers.shared.code import has_changed, own_code
own_code()
print(has_changed())
with Path(sys.argv[1]).open("a") as file:
    file.write("# one line more")
print(has_changed())
"""


@dataclass
class Played:
    """A driver's process that notes what it is told."""

    loads: bool = False
    is_usable: bool = True
    """What it answers to `begin` and `rest`."""
    told: list[str] = field(default_factory=list)

    def is_loading(self) -> bool:
        return self.loads

    def begin(self) -> bool:
        self.told.append("begin")
        return self.is_usable

    def rest(self) -> bool:
        self.told.append("rest")
        return self.is_usable

    def load_trials(self) -> bool:
        self.told.append("load_trials")
        return self.is_usable

    def end(self) -> None:
        self.told.append("end")


class Pool:
    """A pool whose clock stands still, and the drivers that it has started."""

    def __init__(self, most: int = 1) -> None:
        self.now, self.made = 0.0, list[Played]()
        self.drivers = WarmDrivers(most, self._make, clock=lambda: self.now)

    def _make(self) -> Played:
        self.made.append(Played())
        return self.made[-1]

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.drivers.fill(working=0)


def test_as_many_drivers_wait_as_are_asked_for():
    pool = Pool(most=2)
    for _ in range(4):
        pool.drivers.fill(working=0)
    assert len(pool.made) == 2


def test_each_driver_is_taken_once():
    pool = Pool()
    pool.drivers.fill(working=0)
    assert pool.drivers.take() is pool.made[0]
    assert pool.drivers.take() is None


def test_a_driver_that_has_finished_is_taken_again():
    pool = Pool()
    driver = Played()
    pool.drivers.give_back(driver)
    assert pool.drivers.take() is driver
    assert driver.told == ["rest", "begin"]


@pytest.mark.parametrize("why", ["it died", "the code is another"])
def test_a_driver_of_no_use_is_ended_and_the_next_one_taken(why):
    pool = Pool(most=2)
    pool.drivers.fill(working=0)
    pool.drivers.fill(working=0)
    pool.made[1].is_usable = False
    assert pool.drivers.take() is pool.made[0]
    assert pool.made[1].told == ["begin", "end"]


def test_a_driver_that_still_loads_is_taken_without_a_question_which_it_could_not_answer():
    pool = Pool()
    pool.drivers.fill(working=0)
    pool.made[0].loads = True
    assert pool.drivers.take() is pool.made[0]
    assert pool.made[0].told == []


def test_a_driver_that_is_worn_out_is_ended():
    pool, driver = Pool(), Played(is_usable=False)
    pool.drivers.give_back(driver)
    assert driver.told == ["rest", "end"]
    assert pool.drivers.take() is None


def test_a_driver_more_than_may_wait_is_ended():
    pool, one, two = Pool(), Played(), Played()
    pool.drivers.give_back(one)
    pool.drivers.give_back(two)
    assert (one.told, two.told) == (["rest"], ["end"])


def test_nothing_is_loaded_for_a_driver_that_will_wait_after_its_experiment():
    pool = Pool(most=2)
    pool.drivers.fill(working=2)
    assert not pool.made
    pool.drivers.fill(working=1)
    assert len(pool.made) == 1


def test_processes_for_trials_are_loaded_once_it_is_quiet():
    pool, driver = Pool(), Played()
    pool.drivers.give_back(driver)
    pool.pass_time(warm_drivers.QUIET_SECONDS - 1)
    assert driver.told == ["rest"]
    for _ in range(3):
        pool.pass_time(1)
    assert driver.told == ["rest", "load_trials"]


def test_nothing_is_loaded_beside_the_trials_of_another_driver():
    pool, driver = Pool(most=2), Played()
    pool.drivers.give_back(driver)
    pool.now += warm_drivers.QUIET_SECONDS
    pool.drivers.fill(working=1)
    assert driver.told == ["rest"]


def test_processes_that_are_missing_later_are_loaded_again():
    pool, driver = Pool(), Played()
    pool.drivers.give_back(driver)
    pool.pass_time(warm_drivers.QUIET_SECONDS)
    pool.pass_time(warm_drivers.LOOK_SECONDS)
    assert driver.told == ["rest", "load_trials", "load_trials"]


def test_another_driver_is_started_for_one_that_died_while_it_waited():
    pool = Pool()
    pool.pass_time(0)
    pool.made[0].is_usable = False
    pool.pass_time(warm_drivers.LOOK_SECONDS)
    assert pool.made[0].told == ["load_trials", "end"]
    assert pool.drivers.take() is pool.made[1]


def test_nothing_waits_any_more_where_there_was_no_experiment_for_long():
    pool = Pool()
    pool.pass_time(0)
    pool.pass_time(warm_drivers.IDLE_SECONDS)
    assert pool.made[0].told == ["end"]
    pool.pass_time(1)
    assert len(pool.made) == 1
    assert pool.drivers.take() is None
    pool.pass_time(1)
    assert len(pool.made) == 2


@pytest.mark.parametrize(("gigabytes", "fit"), [(4, 1), (3, 0)])
def test_no_driver_waits_where_memory_is_short(gigabytes, fit, caplog):
    caplog.set_level(logging.INFO)
    assert count_that_fit(1, gigabytes * 10**9) == fit
    assert ("EIGENSWEEP_WARM_DRIVERS" in caplog.text) == (not fit)


def test_none_waits_where_none_is_wanted():
    cluster = RayCluster(None, 0)
    cluster.keep_warm()  # would need Ray
    assert cluster._pool is None


def test_all_that_wait_can_be_ended():
    pool = Pool(2)
    pool.pass_time(1)
    pool.pass_time(1)
    pool.drivers.end_waiting()
    assert [driver.told for driver in pool.made] == [["end"]] * 2
    assert pool.drivers.take() is None


def test_trials_ask_for_processes_that_ray_has_ready_for_anybody(monkeypatch):
    for each in CREDENTIALS:
        monkeypatch.delenv(each, raising=False)
    assert "runtime_env" not in TrialProcesses().get()._default_options


def test_the_credentials_of_a_driver_go_on_to_its_trials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k1")
    asked = TrialProcesses().get()._default_options["runtime_env"]["env_vars"]
    assert asked["AWS_ACCESS_KEY_ID"] == "k1"


@pytest.mark.parametrize(("given", "threads"), [({}, "1"), ({"OMP_NUM_THREADS": "3"}, "3")])
def test_pytorch_is_loaded_ahead_for_as_many_threads_as_ray_gives_to_a_trial(
    given, threads, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    found = trial_processes._environment({"LD_PRELOAD": "jemalloc", **given})
    assert found == {**os.environ, "OMP_NUM_THREADS": threads}


def test_where_pytorch_cannot_be_loaded_ahead_thin_processes_are_started_still(monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise OSError("no memory")

    started: list[bool] = []
    monkeypatch.setattr(trial_processes, "keep_server", fail)
    monkeypatch.setattr(trial_processes, "_start_thin", lambda: started.append(True))
    trial_processes.load_ahead()
    assert started == [True]
    assert "the first trial waits for it: no memory" in caplog.text


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

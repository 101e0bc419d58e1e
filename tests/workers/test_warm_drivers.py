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

from eigensweep.workers.cluster import warm_drivers
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.cluster.warm_drivers import WarmDrivers, count_that_fit
from eigensweep.workers.driver import trial_processes
from eigensweep.workers.driver.trainable import TrialProcesses
from eigensweep.workers.driver.trial_processes import want_loaded
from eigensweep.workers.shared.code import own_code

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


@pytest.mark.parametrize(("gigabytes", "fit"), [(16, 1), (4, 0)])
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


def ask_of_tune() -> dict[str, str]:
    """Return the variables that Ray Tune would give to the processes of trials."""
    made = TrialProcesses().get()
    return made._default_options["runtime_env"]["env_vars"]


@pytest.fixture
def no_threads_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service was started without `OMP_NUM_THREADS`."""
    monkeypatch.setattr(trial_processes, "_given_threads", lambda: None)


@pytest.mark.usefixtures("no_threads_given")
@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (1, "1"), (4, "4")])
def test_trials_ask_for_processes_that_have_loaded_the_drivers_code_where_there_may_be_such(
    cpus, threads
):
    before = ask_of_tune()
    want_loaded(True, cpus)
    asked = ask_of_tune()
    assert asked.pop("PYTHONPATH").startswith(str(TESTS.parent))
    assert asked == before | {
        "OMP_NUM_THREADS": threads,  # as Ray would set it, before NumPy is loaded
        "CODE_OF_TRIALS": own_code().digest,
        "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR": "eigensweep.workers.engine.preload.load",
    }
    want_loaded(False)
    assert ask_of_tune() == before


def test_a_process_that_waits_for_a_trial_has_loaded_all_that_takes_long():
    program = (
        "import sys\n"
        "from eigensweep.workers.engine.preload import load\n"
        "print(sorted({'torch', 'ray.tune'} & set(sys.modules)))\n"
        "load()\n"
        "print(sorted({'torch', 'ray.tune'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["[]", "['torch']"]


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

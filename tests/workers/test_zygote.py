"""Drivers that are forked from a zygote, a real one: what they do is played."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from experiments import wait_for
from waiting import PATIENCE, wait_until

from eigensweep.common.aside import call_aside
from eigensweep.protocol.messages import DriverOptions
from eigensweep.workers.cluster import drivers as module
from eigensweep.workers.cluster.drivers import UNSEEN, DriverProcess, Drivers
from eigensweep.workers.deaths import Death
from eigensweep.workers.driver.process.driver_order import DriverOrder

TESTS = Path(__file__).parents[1]
STARTER = """
import time
from eigensweep.workers.cluster.drivers import Drivers

made = Drivers()
made.start()
print(made._zygote.pid, flush=True)
while made._heard is None:
    time.sleep(0.01)
print("loaded", flush=True)
time.sleep(3600)
"""
Launch = Callable[..., DriverProcess]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    made = Drivers(["played_driver"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("home"))
        patch.setenv("PYTHONPATH", f"{TESTS.parent}:{TESTS / 'helpers'}")
        made.start()
        wait_until(lambda: made._heard is not None)
        yield made
        made.stop()


@pytest.fixture
def launch(drivers: Drivers, tmp_path: Path) -> Iterator[Launch]:
    """Return what launches a driver, which does what `does` says, or waits until it is let go."""
    waits = tmp_path / "waits"
    waits.touch()

    def launch(experiment: str = "e1", does: str | None = None, ledger: Any = None) -> Any:
        options = DriverOptions(storage="/s")
        order = DriverOrder(experiment, {"does": does or str(waits)}, ledger, options, "address")
        return drivers.launch(order, str(tmp_path / "logs" / f"{experiment}.log"))

    yield launch
    waits.unlink(missing_ok=True)


def is_forked(driver: DriverProcess) -> bool:
    return driver.pid is not None


def replace_zygote(drivers: Drivers) -> None:
    """Let a zygote be replaced; wait until the next one has loaded."""
    before = drivers.starts

    def is_new() -> bool:
        drivers.watch()
        return drivers.starts > before and drivers._heard is not None

    wait_until(is_new)


@contextmanager
def limit_files(pid: int) -> Iterator[None]:
    """Let a process open no further file."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class Unreadable:
    """A ledger that no other process can make again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def test_it_is_one_thread_and_so_nothing_is_lost_by_a_fork(drivers):
    assert psutil.Process(drivers._zygote.pid).num_threads() == 1


def test_a_driver_has_its_own_session_and_log(drivers, launch, tmp_path):
    driver, other = launch(), launch("e2")
    wait_until(lambda: is_forked(driver) and is_forked(other))
    wait_until(lambda: os.getsid(driver.pid) == driver.pid != other.pid)
    assert (driver.state(), drivers.find("e1"), drivers.find("e2")) == ("running", driver, other)
    wait_until(lambda: "eigensweep::Driver e1" in " ".join(psutil.Process(driver.pid).cmdline()))
    (tmp_path / "waits").unlink()
    assert [wait_for(each) for each in (driver, other)] == ["ended"] * 2
    assert (driver.death, drivers.find("e1")) == (None, None)
    assert "it drives e1" in (tmp_path / "logs" / "e1.log").read_text()


@pytest.mark.parametrize(
    ("does", "state", "words"),
    [
        ("failure", "died", "ValueError: a bug"),
        ("memory", "died", "MemoryError"),
        ("store", "died", "cannot list s3://lab/x"),
        ("superseded", "ended", "it has a successor"),
    ],
)
def test_it_says_why_it_ended(launch, does, state, words):
    driver = launch(does=does)
    assert wait_for(driver) == state
    assert (driver.death.cause, words in driver.death.words) == (does, True)


def test_one_that_is_killed_for_a_reason_died_of_that(launch):
    driver, why = launch(), Death("it had not stopped its trials", "stuck")
    wait_until(lambda: is_forked(driver))
    driver.kill(why)
    assert wait_for(driver) == "died"
    assert driver.death == why


def test_long_last_words_in_any_letters_do_not_hold_it_up(launch):
    driver = launch(does="words")
    assert wait_for(driver) == "died"
    assert driver.death.words.endswith("\N{GRINNING FACE}" * 1000 + "?\n")


def test_where_nothing_can_be_forked_the_others_go_on(drivers, launch):
    before, driver = drivers.starts, launch()
    wait_until(lambda: is_forked(driver))
    with limit_files(drivers._zygote.pid):
        other = launch("e2")
        assert wait_for(other) == "died"
        assert other.death == Death(
            "the machine forks no further process: [Errno 24] Too many open files", "memory"
        )
    third = launch("e3")
    wait_until(lambda: is_forked(third))
    assert (driver.state(), drivers.starts) == ("running", before)


@pytest.mark.parametrize(
    ("experiment", "words"),
    [
        ("unconnected", "ConnectionError: no Ray answers at address"),
        ("ended", "it ended before it was connected to Ray"),
    ],
)
def test_one_that_ray_does_not_connect_has_not_failed(launch, experiment, words):
    driver = launch(experiment)
    assert wait_for(driver) == "died"
    assert (driver.death.cause, words in driver.death.words) == ("ray", True)


def test_one_that_cannot_read_what_it_is_told_says_so(launch):
    driver = launch(ledger=Unreadable())
    assert wait_for(driver) == "died"
    assert "no number" in driver.death.words


def test_a_killed_one_has_failed_unless_memory_ran_out(launch, monkeypatch):
    driver = launch()
    wait_until(lambda: is_forked(driver))
    driver.kill()
    assert wait_for(driver) == "died"
    assert driver.death == Death("the driver's process ended by SIGKILL")
    another = launch()
    wait_until(lambda: is_forked(another))
    monkeypatch.setattr(module, "count_kills", lambda: another._killed + 1)
    another.kill()
    assert wait_for(another) == "died"
    assert another.death.cause == "memory"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.quick_cases(1)
def test_drivers_outlive_their_zygote_and_the_next_one_forks_on(
    drivers, launch, tmp_path, monkeypatch, how
):
    monkeypatch.setattr(module, "SILENT_SECONDS", 3.0)
    driver = launch()
    wait_until((tmp_path / "logs" / "e1.log").exists)  # its zygote has let it begin
    os.kill(drivers._zygote.pid, how)
    later = launch("e2")
    replace_zygote(drivers)
    wait_until(lambda: is_forked(later))
    assert [driver.state(), later.state()] == ["running"] * 2
    (tmp_path / "waits").unlink()
    assert (wait_for(later), wait_for(driver)) == ("ended", "died")
    assert driver.death == Death(UNSEEN, "unseen")


def test_a_large_request_to_one_that_hangs_holds_nothing_up(drivers, launch, monkeypatch):
    monkeypatch.setattr(module, "SILENT_SECONDS", 3.0)
    os.kill(drivers._zygote.pid, signal.SIGSTOP)
    asked = call_aside(lambda: launch(does="end", ledger="x" * 2**20), "test")
    try:
        driver = asked.result(PATIENCE)
    except TimeoutError:
        drivers._zygote.kill()  # else all other tests wait, too
        raise
    replace_zygote(drivers)
    assert wait_for(driver) == "ended"


@pytest.mark.parametrize("when", ["while it loads", "while it is stopped"])
def test_it_ends_with_its_starter_at_any_moment(when):
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        zygote = psutil.Process(int(starter.stdout.readline()))
        if when == "while it is stopped":
            assert starter.stdout.readline() == "loaded\n"
            zygote.suspend()
        starter.kill()
    try:
        wait_until(lambda: not zygote.is_running() or zygote.status() == psutil.STATUS_ZOMBIE)
    finally:
        with suppress(psutil.NoSuchProcess):
            zygote.kill()


def test_with_other_code_on_the_disk_another_zygote_forks(drivers, launch):
    first = drivers._zygote.pid
    Path("edited").touch()
    driver = launch(does="end")
    wait_until(lambda: not psutil.pid_exists(first) or drivers._zygote.poll() is not None)
    Path("edited").unlink()
    replace_zygote(drivers)
    assert wait_for(driver) == "ended"


def test_a_zygote_that_cannot_load_is_told_and_tried_again(monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(module, "PROGRAM", "no_such_module")
    broken = Drivers()
    broken.start()

    def is_told() -> Any:
        broken.watch()
        return broken.problem

    assert "ends while it loads" in wait_until(is_told)
    broken.stop()


def test_a_driver_not_forked_before_a_stop_never_begins(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PROGRAM", "no_such_module")
    made = Drivers()
    made.start()
    made._zygote.wait()
    order = DriverOrder("e1", {}, None, DriverOptions(storage="/s"), "address")
    process = made.launch(order, str(tmp_path / "log"))
    made.stop(kill=True)
    assert process.state() == "died"
    made.start()
    assert made._requests.empty()
    made.stop()


@pytest.mark.slow  # a zygote loads for seconds
def test_a_zygote_that_cannot_be_started_is_started_later(monkeypatch):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(module, "PROGRAM", "no_such_module")
    made = Drivers()
    made.start()
    made._zygote.wait()
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                made.watch()
    assert made.starts == 1
    made.watch()
    assert made.starts == 2
    made.stop()

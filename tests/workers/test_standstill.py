"""A driver that stands still says so on its experiment, and in which line."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any

import pytest
from clocks import Clock
from file_ledger import FileLedger
from sweeps import COPYING, SCORNN
from waiting import wait_until

from eigensweep.protocol.messages import DriverOptions, Notice
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver import standstill
from eigensweep.workers.driver.experiment import ExperimentDriver, run_experiment
from eigensweep.workers.driver.standstill import STILL_SECONDS, Standstill

SPEC = {"task": COPYING, "model": SCORNN, "training": {"steps": 5}, "search": {"trials": 1}}


def test_it_is_told_once_with_the_line_where_it_is():
    clock, told = Clock(), []
    watch = Standstill(told.append, clock)
    waiting = threading.get_ident()
    asked, is_inside, is_over = [], threading.Event(), threading.Event()

    def look() -> None:
        assert is_inside.wait(30)
        wait_until(lambda: sys._current_frames()[waiting].f_code.co_name == "wait")
        for seconds in (STILL_SECONDS - 1, 2, STILL_SECONDS):
            clock.now += seconds
            watch.look()
            asked.append(len(told))
        is_over.set()

    class PackagesLock:
        def wait(self) -> bool:
            is_inside.set()
            return is_over.wait(30)

    ours: dict[str, Any] = {"__name__": "eigensweep.ours"}
    exec("def wait_for(lock): return lock.wait()", ours)
    nobodys: dict[str, Any] = {}
    exec("def call(wait_for, lock): return wait_for(lock)", nobodys)
    threading.Thread(target=look).start()
    assert nobodys["call"](ours["wait_for"], PackagesLock())
    assert asked == [0, 1, 1]
    assert told[0].kind == "driver"
    own, theirs, innermost = told[0].words.split(": ", 1)[1].split(", which calls ")
    assert own.startswith("wait_for (")
    assert theirs.startswith(f"wait ({__file__}:")
    assert innermost.startswith(f"wait ({threading.__file__}:")


def test_each_standstill_is_told_of_one_that_goes_on():
    clock, told = Clock(), []
    seen = clock.now
    watch = Standstill(lambda notice: None, clock)
    watch.follow(lambda: seen, told.append)
    for seen in (clock.now + STILL_SECONDS, clock.now + 2 * STILL_SECONDS):
        clock.now = seen + STILL_SECONDS - 1
        watch.look()
        clock.now += 1
        watch.look()
    assert len(told) == 2
    seen = math.inf  # its trials are over
    clock.now += 10 * STILL_SECONDS
    watch.look()
    assert len(told) == 2


def test_a_record_that_cannot_be_told_is_no_end_of_the_watch():
    clock, asked = Clock(), []

    def fail(notice: Notice) -> None:
        asked.append(notice)
        raise OSError("the record is away")

    watch = Standstill(fail, clock)
    clock.now += STILL_SECONDS
    watch.look()
    assert len(asked) == 1


def test_the_notice_is_taken_back_when_the_driver_goes_on(tmp_path):
    ledger = FileLedger(tmp_path / "ledger.json")
    options = DriverOptions(storage=str(tmp_path / "store"))
    driver = ExperimentDriver("e1", ExperimentSpec.model_validate(SPEC), ledger, options)
    assert driver.seen_at() == -math.inf
    assert not driver.must_stop()
    assert driver.seen_at() == pytest.approx(time.monotonic(), abs=60)
    driver.tell_standstill(Notice("driver", "its driver stands still"))
    assert [each["words"] for each in ledger.read("notices")] == ["its driver stands still"]
    assert not driver.must_stop()
    assert ledger.read("notices") == []
    driver._told = [Notice("disk", "it is low")]  # as if both threads had written at once
    driver._stood_still = True
    driver.ledger.record_notices([Notice("driver", "its driver stands still")])
    driver._told = []
    assert not driver.must_stop()
    assert ledger.read("notices") == []


def test_a_package_that_hangs_before_the_first_trial_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(standstill, "STILL_SECONDS", 0.1)
    monkeypatch.setattr(standstill, "LOOK_SECONDS", 0.05)
    ledger = FileLedger(tmp_path / "ledger.json")
    found: list[str] = []

    def import_a_package(content: object) -> ExperimentSpec:
        end = time.monotonic() + 60
        while not found and time.monotonic() < end:
            time.sleep(0.02)
            found.extend(each["words"] for each in ledger.read("notices"))
        raise ImportError("enough")

    monkeypatch.setattr(ExperimentSpec, "from_stored", import_a_package)
    options = DriverOptions(storage=str(tmp_path / "store"))
    with pytest.raises(ImportError):
        run_experiment("e1", {}, ledger, options)
    assert "run_experiment (" in found[0]
    assert "import_a_package (" in found[0]
    wait_until(lambda: "standstill" not in {each.name for each in threading.enumerate()})

"""A disk that is nearly full lets no new trial begin, with sizes that a test makes up."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clocks import Clock
from file_ledger import FileLedger
from sweeps import COPYING, SCORNN

from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.store.places import disk_space
from eigensweep.store.places.disk_space import LOOK_SECONDS, DiskSpace, measure_free
from eigensweep.workers.driver.experiment import ExperimentDriver

LEAST = 1000


class Disk:
    """The free bytes of every folder, and a clock that goes on with each look."""

    def __init__(self) -> None:
        self.free: int | None = 5 * LEAST
        self.clock = Clock()
        self.looks = 0

    def find_low(self, folder: Path, least: float) -> str | None:
        self.looks += 1
        if self.free is None:
            raise OSError("the disk does not answer")
        return f"has {self.free} bytes free" if self.free < least else None

    def space(self, *folders: str, least: int = LEAST) -> DiskSpace:
        return DiskSpace(folders or ("/store",), least, self.find_low, self.clock)

    def wait(self) -> None:
        self.clock.now += LOOK_SECONDS


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_little_space_is_told_in_words_and_much_is_not(disk):
    space = disk.space()
    assert space.notice() is None
    disk.free = LEAST - 1
    disk.wait()
    notice = space.notice()
    assert notice.kind == "disk"
    for words in ("/store", "EIGENSWEEP_LEAST_FREE_MB", "Trials that run go on"):
        assert words in notice.words


def test_trials_do_not_begin_and_stop_in_turns(disk):
    space = disk.space()
    for free, waits in [(999, True), (1001, True), (1200, False), (1001, False), (999, True)]:
        disk.free = free
        disk.wait()
        assert (space.notice() is not None) == waits, free


def test_the_disk_is_not_asked_for_each_trial(disk):
    space = disk.space()
    for _ in range(100):
        space.notice()
    assert disk.looks == 1


def test_a_limit_of_zero_and_a_silent_disk_hold_nobody_up(disk):
    disk.free = 0
    assert disk.space(least=0).notice() is None
    disk.free = None
    assert disk.space().notice() is None


@pytest.mark.parametrize(
    ("bytes_free", "files", "free", "low"),
    [
        (5 * LEAST, 1000, 900, None),
        (LEAST - 1, 1000, 900, "MB free"),
        (5 * LEAST, 1000, 3, "room for 3 more files (inodes)"),
        (5 * LEAST, 0, 0, None),  # a file system without such a limit
    ],
)
def test_a_disk_without_room_for_files_is_full(monkeypatch, tmp_path, bytes_free, files, free, low):
    monkeypatch.setattr(disk_space, "measure_free", lambda folder: bytes_free)
    numbers = SimpleNamespace(f_files=files, f_favail=free)
    monkeypatch.setattr(os, "statvfs", lambda folder: numbers)
    found = DiskSpace([tmp_path], LEAST).notice()
    if low is None:
        assert found is None
    else:
        assert low in found.words
        assert "EIGENSWEEP_LEAST_FREE_MB" in found.words


def test_a_folder_not_yet_there_has_the_disk_of_the_one_above(tmp_path):
    assert measure_free(tmp_path / "a" / "b") > 0


def test_a_driver_gives_no_order_and_says_why_without_room(disk, tmp_path, monkeypatch):
    ledger = FileLedger(tmp_path / "ledger.json")
    options = DriverOptions(storage=str(tmp_path / "store"))
    content: dict[str, Any] = {"task": COPYING, "model": SCORNN, "training": {"steps": 5}}
    driver = ExperimentDriver("e1", ExperimentSpec.model_validate(content), ledger, options)
    monkeypatch.setattr(driver, "_concurrency", lambda: 1)
    driver._disks = disk.space()
    disk.free = 10
    assert driver.next_order() is None
    assert not driver.must_stop()
    (notice,) = ledger.read("notices")
    assert notice["words"].startswith("new trials wait")
    disk.free = 5 * LEAST
    disk.wait()
    order = driver.next_order()
    assert order is not None
    assert order.number == 0
    assert not driver.must_stop()
    assert ledger.read("notices") == []

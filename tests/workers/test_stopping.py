"""When a driver finds that its experiment's time is over."""

from __future__ import annotations

import time
from pathlib import Path

from file_ledger import FileLedger
from sweeps import COPYING, SCORNN

from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.experiment import ExperimentDriver


def test_a_clock_that_is_set_back_makes_the_limit_no_longer(tmp_path: Path, monkeypatch):
    options = DriverOptions(storage=str(tmp_path / "store"))
    content = {"task": COPYING, "model": SCORNN, "limits": {"wall_seconds": 1e-6}}
    spec = ExperimentSpec.model_validate(content | {"training": {"steps": 5}})
    driver = ExperimentDriver("e1", spec, FileLedger(tmp_path / "ledger.json"), options)
    before = time.time()
    monkeypatch.setattr(time, "time", lambda: before - 3600)
    assert driver.why_stop() == "its 1e-06 s are over (limits.wall_seconds)"


def test_of_one_that_has_failed_nothing_more_is_trained(tmp_path: Path):
    content = {"task": COPYING, "model": SCORNN, "training": {"steps": 5}}
    spec = ExperimentSpec.model_validate(content | {"search": {"trials": 3}})
    ledger = FileLedger(tmp_path / "ledger.json")
    ledger.end("failed", "its driver died 5 times without any progress")
    ExperimentDriver("e1", spec, ledger, DriverOptions(storage=str(tmp_path / "store"))).run()
    assert ledger.load() == []
    assert ledger.read("end")[0] == "failed"
    assert ledger.read("tracked") is True
    assert ledger.read("total") == 0

"""What trials have used, by a clock that a test sets."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from clocks import Clock
from prometheus_client import CollectorRegistry

from eigensweep.protocol.messages import Place
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.routes.metrics import _about_record
from eigensweep.service.record.journal import spent_seconds
from eigensweep.service.record.journal.usage import devices_of, sum_by_user
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.service.record.views.counts import count_all

PLACE = Place("node7", 4711, "cpu")
CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock(1_000_000.0)
    monkeypatch.setattr(time, "time", made)
    steady = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: steady() + made.now)
    return made


def start(url: str, content: dict[str, Any], owner: str = "anna") -> RecordLedger:
    """Post an experiment with one waiting trial and return the ledger of its driver."""
    record = Record(url)
    posted, _ = record.add(ExperimentSpec.model_validate(content), None, owner)
    claim = record.claim(posted.id)
    assert claim is not None
    ledger = RecordLedger(url, posted.id, claim.generation, patience=0)
    ledger.open(0, "scornn", {}, CONFIG, "abc")
    return ledger


def read(ledger: RecordLedger) -> list[tuple[float, float, float]]:
    """Return what the experiment and its trial have used."""
    experiment = Record(ledger.url).row(ledger.experiment_id)
    key = (ledger.experiment_id, 0)
    trial = database.read(ledger.url, lambda session: session.get_one(TrialRow, key))
    return [(row.trial_seconds, row.cpu_seconds, row.gpu_seconds) for row in (experiment, trial)]


def train(ledger: RecordLedger, clock: Clock) -> None:
    """Let the trial train for 100 s to a report and 50 s more, wait 50 s, and train for 100 s."""
    ledger.begin(0)
    clock.now += 100
    ledger.report(0, 1, 10, {"objective": 1.0}, PLACE)
    clock.now += 50
    ledger.interrupt(0, 1, "its process was lost")
    clock.now += 50
    ledger.begin(0)
    clock.now += 100
    ledger.finish(0, 2, "completed", Result(value=1.0, step=100))


def test_all_attempts_count_and_no_wait_does(each_url, spec, clock):
    ledger = start(each_url, spec(resources={"cpus": 2, "gpus": 0.5}))
    train(ledger, clock)
    clock.now += 1000
    ledger.finish(0, 2, "failed", None, "late")
    assert read(ledger) == [(250.0, 500.0, 125.0)] * 2


def test_a_trial_that_trains_counts_up_to_its_newest_report(url, spec, clock):
    ledger = start(url, spec())
    ledger.begin(0)
    assert read(ledger) == [(0.0, 0.0, 0.0)] * 2
    for step in (10, 20):
        clock.now += 30
        ledger.report(0, 1, step, {"objective": 1.0}, PLACE)
    assert read(ledger) == [(60.0, 60.0, 0.0)] * 2


def test_a_clock_set_back_and_forth_counts_no_time_twice(url, spec, clock):
    ledger = start(url, spec())
    ledger.begin(0)
    for step, jump in ((10, 0), (20, -3600), (30, 3600), (40, 0)):
        clock.now += 30 + jump
        ledger.report(0, 1, step, {"objective": 1.0}, PLACE)
    assert read(ledger) == [(120.0, 120.0, 0.0)] * 2


def test_trials_of_one_engine_share_its_devices():
    resources = {"cpus": 1.0, "gpus": 1.0, "lanes": "auto"}
    alone, shared = devices_of({"resources": resources}), devices_of({"resources": resources}, 8)
    assert (alone, shared) == ((1.0, 1.0), (1 / 9, 1 / 9))
    assert devices_of({"resources": resources, "replicates": 3}, 8) == (1 / 3, 1 / 3)
    assert devices_of({}) == (1.0, 0.0)


def test_steps_that_are_told_before_lanes_are_known_count_later(url, spec, clock):
    ledger = start(url, spec(resources={"gpus": 1, "lanes": "auto"}))
    ledger.begin(0, PLACE)  # that of its thin process
    for step, place in ((10, None), (20, replace(PLACE, lanes=8)), (30, None)):
        clock.now += 30
        ledger.report(0, 1, step, {}, place)
        assert read(ledger)[0][0] == (0.0 if step == 10 else 3.0 * step)
    clock.now += 30
    ledger.finish(0, 1, "completed", Result(value=1.0, step=100))
    shared = pytest.approx((120.0, 120 / 9, 120 / 9))
    assert read(ledger) == [shared] * 2


def test_users_and_metrics_have_the_sum_of_their_experiments(url, spec, clock):
    for owner in ("anna", "bob", "anna"):
        train(start(url, spec(resources={"cpus": 2}), owner), clock)
    assert sum_by_user(url) == [
        ("anna", 2, 500.0, 1000.0, 0.0),
        ("bob", 1, 250.0, 500.0, 0.0),
    ]
    registry = CollectorRegistry()
    registry.register(_Of(url))
    name = "eigensweep_device_seconds_total"
    found = [registry.get_sample_value(name, {"kind": kind}) for kind in ("cpu", "gpu")]
    assert found == [1500.0, 0.0]


class _Of:
    """Collects the metrics of a record."""

    def __init__(self, url: str) -> None:
        self._url = url

    def collect(self) -> Any:
        return _about_record(count_all(self._url))


def test_the_api_and_the_pages_show_wall_time_and_device_hours(client, record, spec, clock):
    posted = client.post("/v1/experiments", json=spec(resources={"cpus": 2})).json()["id"]
    claim = record.claim(posted)
    ledger = RecordLedger(record.url, posted, claim.generation, patience=0)
    ledger.open(0, "scornn", {}, CONFIG, "abc")
    train(ledger, clock)
    used = {"trial_seconds": 250.0, "cpu_hours": pytest.approx(500 / 3600), "gpu_hours": 0.0}
    found = client.get(f"/v1/experiments/{posted}").json()
    assert (found["wall_seconds"], found["usage"]) == (300.0, used)
    assert client.get(f"/v1/experiments/{posted}/trials/0").json()["usage"] == used
    assert client.get("/v1/usage").json()["items"] == [
        {"user": "operator", "experiments": 1, **used}
    ]
    for page in (f"/experiments/{posted}", f"/experiments/{posted}/trials/0"):
        assert "of CPU cores" in client.get(page).text


def test_no_time_is_spent_by_a_clock_that_was_set_back():
    experiment = ExperimentRow(started_at=5000.0, idle_seconds=0.0)
    assert spent_seconds(experiment, now=5060.0) == 60
    assert spent_seconds(experiment, now=1400.0) == 0

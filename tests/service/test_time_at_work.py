"""What counts as time at work, and what does not: pauses, ends, waits in a queue, nights."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import update
from test_ledger_contract import PLACE

from eigensweep.protocol.fair_shares import Demand
from eigensweep.protocol.messages import DriverOptions
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.errors import QuotaExceededError
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.record.users.accounts import Accounts, Quotas

HOUR = 3600.0


class Lab:
    """An experiment, and a clock that a test sets."""

    def __init__(self, record: Any, content: dict[str, Any], monkeypatch: Any) -> None:
        self.record, self.ahead, self.leapt = record, 0.0, 0.0
        clock, steady = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: clock() + self.ahead + self.leapt)
        monkeypatch.setattr(time, "monotonic", lambda: steady() + self.ahead)
        self.spec = ExperimentSpec.model_validate(content)
        self.id = record.add(self.spec)[0].id

    def wait(self, seconds: float) -> None:
        self.ahead += seconds

    def work(self, seconds: float, **how: Any) -> RecordLedger:
        """Let a driver work for so long, and return its ledger."""
        ledger = RecordLedger(
            self.record.url, self.id, self.record.claim(self.id, **how).generation
        )
        ledger.record_phase("running")
        self.wait(seconds)
        return ledger

    @property
    def spent(self) -> float:
        return RecordLedger(self.record.url, self.id, 1).resume_state().spent_seconds


@pytest.fixture
def lab(record, spec, monkeypatch):
    return Lab(record, spec(limits={"wall_seconds": 2 * HOUR}), monkeypatch)


def test_a_pause_that_ends_in_a_cancel_is_no_work(lab):
    ledger = lab.work(600)
    lab.record.pause(lab.id)
    ledger.pause()
    lab.wait(10 * HOUR)
    lab.record.cancel(lab.id)
    assert lab.spent == pytest.approx(600, abs=30)
    lab.record.extend(lab.id, lab.spec)
    lab.work(60)
    assert lab.spent == pytest.approx(660, abs=30)


def test_a_second_pause_in_the_queue_takes_nothing_of_the_first(lab):
    ledger = lab.work(600)
    lab.record.pause(lab.id)
    ledger.pause()
    for _ in range(2):
        lab.wait(10 * HOUR)
        lab.record.resume(lab.id)
        lab.wait(HOUR)
        lab.record.pause(lab.id)
    lab.record.resume(lab.id)
    lab.work(60)
    assert lab.spent == pytest.approx(660, abs=30)


def test_a_wait_for_a_place_is_no_work(lab):
    ledger = lab.work(600)
    ledger.record_phase("waiting_for_room")
    lab.wait(5 * HOUR)
    assert lab.spent == pytest.approx(600, abs=30)
    ledger.record_phase("running")
    lab.wait(60)
    assert lab.spent == pytest.approx(660, abs=30)


@pytest.mark.parametrize("hours", [8, -8])
def test_a_leap_in_a_wait_for_a_place_is_left_out_once(lab, hours):
    ledger = lab.work(600)
    ledger.record_notices([])
    ledger.record_phase("waiting_for_room")
    lab.wait(HOUR)
    lab.leapt += hours * HOUR
    ledger.record_notices([])
    assert lab.spent == pytest.approx(600, abs=30)
    ledger.record_phase("running")
    lab.wait(60)
    ledger.record_notices([])
    assert lab.spent == pytest.approx(660, abs=30)


def test_a_wait_of_an_older_version_is_no_work_from_now_on(lab):
    lab.work(600).record_phase("waiting_for_room")
    with database.engine(lab.record.url).execution_options(mode="writes").begin() as connection:
        connection.execute(update(ExperimentRow).values(left_at=None))
    lab.record.claim(lab.id, outlived=True)
    lab.wait(HOUR)
    assert lab.spent == pytest.approx(600, abs=30)


def test_a_wait_in_which_the_driver_died_is_left_out_once(lab):
    ledger = lab.work(600)
    ledger.record_phase("waiting_for_room")
    lab.wait(HOUR)
    gone_at = time.time()
    lab.wait(HOUR)
    lab.work(60, gone_at=gone_at)
    assert lab.spent == pytest.approx(660, abs=30)


def test_a_clock_set_back_in_a_pause_is_no_work(lab):
    ledger = lab.work(60)
    lab.record.pause(lab.id)
    ledger.pause()
    lab.wait(-5 * HOUR)
    lab.record.resume(lab.id)
    lab.wait(60)
    lab.work(60)
    assert lab.spent < 200


@pytest.mark.parametrize("hold", ["pause", "cancel"])
def test_what_never_began_has_no_credit_of_its_wait(lab, hold):
    getattr(lab.record, hold)(lab.id)
    lab.wait(10 * HOUR)
    if hold == "pause":
        lab.record.resume(lab.id)
    else:
        lab.record.extend(lab.id, lab.spec)
    lab.work(HOUR)
    assert lab.spent == pytest.approx(HOUR, abs=30)


def test_an_end_is_told_when_it_was_though_it_was_paused_before(lab):
    lab.work(60).request_pause("a test")
    lab.wait(HOUR)
    lab.record.cancel(lab.id)
    row = lab.record.row(lab.id)
    if row.state == "cancelling":
        RecordLedger(lab.record.url, lab.id, row.generation).end("cancelled")
    assert lab.record.row(lab.id).finished_at == pytest.approx(time.time(), abs=30)


def test_a_night_in_which_its_driver_was_dead_is_no_work(lab):
    """As where Ray, which was joined, is away until the morning while the service runs."""
    ledger = lab.work(30)
    ledger.open(0, "scornn", {}, {"training": {"steps": 100}}, "h")
    ledger.begin(0)
    ledger.report(0, 1, 10, {"valid/cross_entropy": 1.0}, PLACE)
    lab.wait(60)
    gone_at = time.time()
    lab.wait(8 * HOUR)
    again = lab.work(0, gone_at=gone_at)
    assert lab.spent == pytest.approx(90, abs=30)
    again.interrupt(0, 1, "its driver was lost")
    assert lab.record.row(lab.id).trial_seconds == pytest.approx(60, abs=30)


@pytest.mark.parametrize("hours", [8, -8])
def test_a_leap_of_the_clock_is_no_work(lab, hours):
    """As where a laptop was suspended, or somebody set its clock."""
    ledger = lab.work(30)
    ledger.open(0, "scornn", {}, {"training": {"steps": 100}}, "h")
    ledger.begin(0)
    lab.record.pause(lab.id)
    for write in (lambda: ledger.report(0, 1, 10, {"objective": 1.0}, PLACE), ledger.pause):
        lab.wait(60)
        lab.leapt += hours * HOUR
        write()
    lab.record.resume(lab.id)
    lab.work(0)
    assert lab.spent == pytest.approx(150, abs=30)
    assert lab.record.row(lab.id).trial_seconds == pytest.approx(120, abs=30)


def test_a_leap_after_the_end_is_left_out_once(lab):
    ledger = lab.work(600)
    lab.record.cancel(lab.id)
    ledger.end("cancelled")
    lab.leapt += 8 * HOUR
    ledger.set_tracked()
    lab.record.extend(lab.id, lab.spec)
    lab.work(60)
    assert lab.spent == pytest.approx(660, abs=30)


def test_hours_in_which_no_driver_can_be_launched_are_no_work(lab, launcher, monkeypatch):
    def refuse(*_: Any) -> None:
        raise OSError("no memory for one process more")

    options = DriverOptions(storage="/storage")
    dispatcher = Dispatcher(
        lab.record, launcher=launcher, options=options, problem=None, clock=lambda: time.time()
    )
    with monkeypatch.context() as patch:
        patch.setattr(launcher, "launch", refuse)
        for _ in range(6):
            dispatcher.tick()
            lab.wait(600)
    dispatcher.tick()
    assert launcher.launched
    assert lab.spent == pytest.approx(0, abs=30)


def test_a_trial_brought_back_ends_after_it_began(lab):
    """It waited when it was cancelled, began for the first time later, and was cancelled again."""
    ledger = lab.work(10)
    ledger.open(0, "scornn", {}, {"training": {"steps": 100}}, "h")
    ledger.finish(0, 0, "cancelled")
    lab.record.cancel(lab.id)
    ledger.end("cancelled")
    lab.wait(HOUR)
    lab.record.extend(lab.id, lab.spec)
    again = lab.work(60)
    again.finish(0, again.begin(0), "cancelled")
    trial = lab.record.trial(lab.id, 0).trial
    assert trial.state == "cancelled"
    assert trial.ended_at >= trial.started_at


def test_a_trial_opened_again_ended_when_it_did_before(lab):
    ledger = lab.work(10)
    ledger.open(0, "scornn", {}, {"training": {"steps": 100}, "replicates": 1}, "h")
    attempt = ledger.begin(0)
    lab.wait(300)
    ledger.finish(0, attempt, "completed", Result(value=0.5, step=100))
    lab.wait(HOUR)
    ledger.reopen(0, {"training": {"steps": 100}, "replicates": 3}, "more seeds")
    began, ended = lab.record.trial_times(lab.id)[0]
    assert ended - began == pytest.approx(300, abs=30)


def test_a_trial_brought_back_has_come_as_far_as_its_result(lab):
    """Its patience was over at step 20 of 40, and a longer budget was cancelled at step 50."""
    ledger = lab.work(10)
    ledger.open(0, "scornn", {}, {"training": {"steps": 40}}, "h")
    ledger.finish(0, ledger.begin(0), "completed", Result(value=0.5, step=20))
    ledger.reopen(0, {"training": {"steps": 80}}, "a longer budget")
    ledger.report(0, ledger.begin(0), 50, {"objective": 0.4}, PLACE)
    ledger.finish(0, 2, "cancelled")
    trial = lab.record.trial(lab.id, 0).trial
    assert (trial.state, trial.step, trial.steps) == ("completed", 20, 40)


def test_a_dead_driver_leaves_its_share_to_others(lab):
    lab.work(0).record_demand(Demand(8, {"CPU": 0.125}))
    assert lab.record.row(lab.id).wants is not None
    lab.record.tell_death(lab.id, "the kernel ended it: no memory was left")
    assert lab.record.row(lab.id).wants is None


def test_a_search_that_was_closed_stays_so_for_each_retry(lab):
    ledger = lab.work(10)
    for number in range(2):
        ledger.open(number, "scornn", {}, {"training": {"steps": 100}}, f"h{number}")
    ledger.finish(0, ledger.begin(0), "failed", None, "my bug")
    lab.record.cancel(lab.id)
    ledger.end("cancelled")
    ledger.set_tracked()
    for end in ("failed", "completed"):
        lab.record.retry(lab.id)
        assert lab.record.row(lab.id).closed
        again = lab.work(10)
        again.finish(0, again.begin(0), "failed", None, "my other bug")
        again.end(end)
        again.set_tracked()
    lab.record.extend(lab.id, lab.spec)
    assert not lab.record.row(lab.id).closed


def test_what_is_being_deleted_takes_nothing_of_a_quota(record, spec):
    Accounts(record.url).create_user("anna", Quotas(max_experiments=2))
    content = ExperimentSpec.model_validate(spec())
    ended = [record.add(content, owner="anna")[0].id for _ in range(2)]
    with pytest.raises(QuotaExceededError):
        record.add(content, owner="anna")
    for id in ended:
        record.cancel(id)
        record.delete(id)
    assert record.row(ended[0]).state == "deleting"
    record.add(content, owner="anna")

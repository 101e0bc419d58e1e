"""What every ledger promises its driver; and that the record's outlives locks and restarts.

The promises are tested on the record in each database, and on the ledger in a file that the tests
of drivers use.
"""

from __future__ import annotations

import dataclasses
import pickle
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from file_ledger import FileLedger
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from waiting import PATIENCE, wait_until

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record import database
from eigensweep.service.record.errors import WrongStateError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.tables import TrialRow
from eigensweep.workers.shared.ledger import Earlier, Finished, RungReport, StaleWriteError
from eigensweep.workers.shared.messages import (
    Notice,
    ParameterCount,
    Place,
    ReplicateResult,
    Result,
    Source,
    Takeover,
)
from eigensweep.workers.shared.results import summarise

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 3, "replicates": 1}
THREE = CONFIG | {"replicates": 3}
RESULT = Result(outcome="completed", value=0.25, step=100, best_step=90)
TAKEOVER = Takeover(40, 0, {"optimizer.lr": 0.2}, "abd")
PLACE = Place(node="here", pid=7, device="cpu")


def post_and_claim(record: Record, spec: dict[str, Any]) -> RecordLedger:
    """Post an experiment and return the ledger of its first driver."""
    experiment, _ = record.add(ExperimentSpec.model_validate(spec))
    claim = record.claim(experiment.id)
    assert claim is not None
    return RecordLedger(record.url, experiment.id, claim.generation, patience=0)


class Subject:
    """A ledger, and what happens to its experiment from outside."""

    def __init__(self, ledger: RecordLedger | FileLedger) -> None:
        self.ledger = ledger

    def cancel(self) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.cancel()
        else:
            Record(self.ledger.database_url).cancel(self.ledger.experiment_id)

    def replace_driver(self) -> None:
        if isinstance(self.ledger, FileLedger):
            self.ledger.replace_driver()
        else:
            Record(self.ledger.database_url).claim(self.ledger.experiment_id)


@pytest.fixture(params=["file", "sqlite", "postgresql"])
def subject(request: pytest.FixtureRequest, tmp_path: Path, spec: Any) -> Subject:
    if request.param == "file":
        return Subject(FileLedger(tmp_path / "ledger.json"))
    url = request.getfixturevalue("url" if request.param == "sqlite" else "postgresql_url")
    return Subject(post_and_claim(Record(url), spec()))


@pytest.fixture
def ledger(subject: Subject) -> RecordLedger | FileLedger:
    return subject.ledger


class TestEveryLedger:
    def test_a_trial_is_told_back_as_it_was_written(self, ledger):
        ledger.open(0, "scornn", {"optimizer.lr": 0.1}, CONFIG, "abc")
        assert ledger.begin(0) == 1
        ledger.report(0, 1, 10, {"valid/loss": 0.5}, PLACE)
        ledger.report(0, 1, 20, {"valid/loss": 0.4}, PLACE)
        ledger.set_run(0, "run7", "1")
        (entry,) = ledger.load()
        assert (entry.number, entry.arm, entry.params) == (0, "scornn", {"optimizer.lr": 0.1})
        assert (entry.config, entry.config_hash) == (CONFIG, "abc")
        assert (entry.state, entry.attempt, entry.run_id) == ("running", 1, "run7")
        assert entry.reports == {10: {"valid/loss": 0.5}, 20: {"valid/loss": 0.4}}
        assert entry.place == PLACE

    def test_opening_a_trial_twice_changes_nothing(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.open(0, "other", {}, CONFIG, "other")
        (entry,) = ledger.load()
        assert (entry.arm, entry.state) == ("scornn", "running")

    def test_an_interrupted_trial_waits_and_begins_with_the_next_attempt(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.interrupt(0, ledger.begin(0), "its process was lost")
        assert ledger.load()[0].state == "waiting"
        assert ledger.begin(0) == 2

    def test_an_earlier_attempt_cannot_write(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.begin(0)
        for write in (
            lambda: ledger.report(0, 1, 10, {}, PLACE),
            lambda: ledger.interrupt(0, 1, "late"),
            lambda: ledger.finish(0, 1, "completed", RESULT),
        ):
            with pytest.raises(StaleWriteError):
                write()
        assert ledger.load()[0].state == "running"

    def test_what_is_reported_with_an_end_is_written_with_it_and_once(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        for metrics in ({"valid/loss": 0.25}, {"valid/loss": 9.0}):
            last = RungReport(100, metrics, PLACE)
            ledger.finish(0, 1, "completed", RESULT, None, last)
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.place) == ("completed", RESULT, PLACE)
        assert entry.reports == {100: {"valid/loss": 0.25}}

    def test_the_first_end_stands(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, "completed", RESULT)
        ledger.finish(0, 1, "completed", RESULT)
        ledger.finish(0, 1, "cancelled")
        (entry,) = ledger.load()
        assert (entry.state, entry.result) == ("completed", RESULT)
        with pytest.raises(StaleWriteError):
            ledger.begin(0)

    def test_an_invalid_point_is_never_scheduled(self, ledger):
        ledger.open_invalid(0, "scornn", {"model.negative_ones": 99}, "at most 6")
        (entry,) = ledger.load()
        assert (entry.state, entry.error, entry.attempt) == ("invalid", "at most 6", 0)

    def test_a_completed_result_is_found_by_hash_seeds_and_budget(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.set_run(0, "run7", "1")
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert not ledger.knows("abc")
        ledger.finish(0, 1, "completed", RESULT)
        assert (ledger.knows("abc"), ledger.knows("abd")) == (True, False)
        found = ledger.find_finished("abc", 3, 1, 100)
        assert found == Finished(Source(ledger.experiment_id, 0, "run7"), RESULT)
        for other in (
            ("abd", 3, 1, 100),
            ("abc", 4, 1, 100),
            ("abc", 3, 2, 100),
            ("abc", 3, 1, 99),
        ):
            assert ledger.find_finished(*other) is None

    def test_a_result_of_other_code_than_its_hash_names_is_not_found(self, ledger):
        for number, trained_by in enumerate(["aaaa,bbbb", "bbbb", None, "aaaa"]):
            ledger.open(number, "scornn", {}, {**CONFIG, "code": "aaaa"}, "abc")
            ledger.begin(number)
            assert ledger.find_finished("abc", 3, 1, 100) is None
            assert ledger.find_shorter("abc", 3, 1, 200) is None
            ledger.finish(number, 1, "completed", dataclasses.replace(RESULT, code=trained_by))
        assert ledger.find_finished("abc", 3, 1, 100).source.number == 3
        assert ledger.find_shorter("abc", 3, 1, 200).source.number == 3

    def test_a_longer_budget_finds_the_longest_shorter_one(self, ledger):
        for number, steps in enumerate([20, 60, 100]):
            config = {**CONFIG, "training": {**CONFIG["training"], "steps": steps}}
            ledger.open(number, "scornn", {}, config, "abc")
            ledger.begin(number)
            ledger.finish(number, 1, "completed" if steps < 100 else "pruned", RESULT)
        found = ledger.find_shorter("abc", 3, 1, 100)
        assert found is not None
        assert found.source.number == 1
        assert ledger.find_shorter("abc", 3, 1, 20) is None
        assert ledger.find_shorter("abd", 3, 1, 100) is None

    def test_a_result_of_more_seeds_is_found_for_fewer_and_cut_to_them(self, ledger):
        self.complete_three_seeds(ledger)
        assert ledger.find_finished("abc", 3, 4, 100) is None
        assert ledger.find_finished("abc", 4, 2, 100) is None
        found = ledger.find_finished("abc", 3, 2, 100)
        assert [each.seed for each in found.result.by_replicate] == [3, 4]
        assert (found.result.value, found.result.replicates) == (3.5, 2)
        assert found.result.parameters == ParameterCount(free=5, stored=7)

    def test_a_result_of_fewer_seeds_is_found_as_part_of_more(self, ledger):
        whole = self.complete_three_seeds(ledger)
        found = ledger.find_part("abc", 3, 100)
        assert (found.source.number, found.result) == (0, whole)
        for other in (("abd", 3, 100), ("abc", 4, 100), ("abc", 3, 99)):
            assert ledger.find_part(*other) is None

    @pytest.mark.parametrize(("others", "is_found"), [("completed", True), (None, False)])
    def test_seeds_beside_one_that_diverged_are_part_of_more_if_they_came_to_their_end(
        self, ledger, others, is_found
    ):
        ledger.open(0, "scornn", {}, THREE, "abc")
        seeds = [dataclasses.replace(self.seed(seed), outcome=others) for seed in (3, 5)]
        seeds.insert(1, dataclasses.replace(self.seed(4), outcome="diverged", value=None))
        ledger.finish(0, ledger.begin(0), "diverged", summarise(seeds))
        found = ledger.find_part("abc", 3, 100)
        assert (found is not None) == is_found
        assert ledger.find_finished("abc", 3, 3, 100) is None

    def test_what_mlflow_holds_of_many_trials_is_recorded_at_once(self, ledger):
        for number in range(3):
            ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
            ledger.begin(number)
        ledger.set_delivered({0: "run a", 1: "run b"}, "7", [0, 2])
        told = [(entry.run_id, entry.tracked) for entry in ledger.load()]
        assert told == [("run a", True), ("run b", False), (None, True)]

    def complete_three_seeds(self, ledger: Any) -> Result:
        ledger.open(0, "scornn", {}, THREE, "abc")
        result = summarise([self.seed(seed) for seed in (3, 4, 5)])
        ledger.finish(0, ledger.begin(0), "completed", result)
        ledger.set_tracked(0)
        return ledger.load()[0].result

    def seed(self, seed: int) -> ReplicateResult:
        count = ParameterCount(free=5, stored=7)
        return ReplicateResult(
            seed=seed, value=float(seed), step=100, outcome="completed", parameters=count
        )

    def reopen(self, ledger: Any) -> int:
        """Open the trial of three seeds again for two more, and return its attempt."""
        ledger.reopen(0, THREE | {"replicates": 5}, "seeds 6 to 7 of the race")
        return ledger.begin(0)

    def test_a_trial_that_is_opened_again_keeps_its_result_until_it_has_a_new_one(self, ledger):
        old = self.complete_three_seeds(ledger)
        ledger.reopen(0, THREE | {"replicates": 5}, "seeds 6 to 7 of the race")
        ledger.reopen(0, THREE | {"replicates": 9}, "a call that came again")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.tracked) == ("waiting", old, False)
        assert entry.config["replicates"] == 5
        assert entry.earlier == Earlier("completed", THREE, "seeds 6 to 7 of the race")
        new = summarise([self.seed(seed) for seed in range(3, 8)])
        ledger.finish(0, ledger.begin(0), "completed", new)
        (entry,) = ledger.load()
        assert (entry.state, entry.attempt, entry.earlier) == ("completed", 2, None)
        assert (entry.result.replicates, entry.config["replicates"]) == (5, 5)

    @pytest.mark.parametrize("outcome", ["failed", "stalled", "cancelled"])
    def test_what_fails_or_is_cancelled_after_it_was_opened_again_is_what_it_was(
        self, ledger, outcome
    ):
        old = self.complete_three_seeds(ledger)
        attempt = self.reopen(ledger)
        ledger.finish(0, attempt, outcome, None, "words")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.config) == ("completed", old, THREE)
        assert (entry.earlier, entry.tracked) == (None, False)
        assert (entry.error is None) == (outcome == "cancelled")

    def test_the_end_of_an_experiment_brings_back_what_was_opened_again(self, ledger):
        old = self.complete_three_seeds(ledger)
        self.reopen(ledger)
        ledger.end("cancelled")
        (entry,) = ledger.load()
        assert (entry.state, entry.result, entry.config) == ("completed", old, THREE)

    def test_a_failed_trial_that_is_opened_again_and_fails_has_failed_with_the_new_error(
        self, ledger
    ):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.finish(0, ledger.begin(0), "failed", None, "first")
        ledger.reopen(0, CONFIG, "another try")
        assert ledger.load()[0].error is None
        ledger.finish(0, ledger.begin(0), "failed", None, "second")
        (entry,) = ledger.load()
        assert (entry.state, entry.error) == ("failed", "second")

    def test_the_end_of_a_round_is_written_once_and_all_of_it(self, ledger):
        for number in range(2):
            ledger.open(number, "scornn", {"optimizer.lr": 0.1}, CONFIG, "abc")
            ledger.interrupt(number, ledger.begin(number), "waits")
        assert ledger.read_round() == 0
        ledger.end_round(40, {1: TAKEOVER})
        ledger.end_round(40, {0: TAKEOVER})
        ledger.end_round(20, {0: TAKEOVER})
        untouched, replaced = ledger.load()
        assert (untouched.lineage, replaced.lineage) == ((), (TAKEOVER,))
        assert replaced.params == {"optimizer.lr": 0.1}
        assert replaced.current_params == {"optimizer.lr": 0.2}
        assert (untouched.reached, replaced.reached, ledger.read_round()) == (0, 40, 40)
        later = dataclasses.replace(TAKEOVER, step=60)
        ledger.end_round(60, {1: later})
        assert ledger.load()[1].lineage == (TAKEOVER, later)

    def test_a_trial_that_changed_on_the_way_is_no_result_of_its_configuration(self, ledger):
        for number in range(2):
            ledger.open(number, "scornn", {}, CONFIG, "abc")
        ledger.end_round(40, {0: TAKEOVER})
        ledger.begin(0)
        ledger.finish(0, 1, "completed", RESULT)
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert ledger.find_shorter("abc", 3, 1, 200) is None
        ledger.begin(1)
        ledger.finish(1, 1, "completed", RESULT)
        assert ledger.find_finished("abc", 3, 1, 100).source.number == 1
        assert ledger.find_shorter("abc", 3, 1, 200).source.number == 1

    def test_what_is_not_finite_is_stored_as_unknown(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.report(0, 1, 10, {"loss": float("inf"), "gain": 2.0}, PLACE)
        result = Result(value=float("nan"), step=10, valid={"loss": float("nan"), "gain": 2.0})
        ledger.finish(0, 1, "diverged", result)
        (entry,) = ledger.load()
        assert entry.reports == {10: {"gain": 2.0}}
        assert entry.result == Result(value=None, step=10, valid={"gain": 2.0})

    def test_the_first_report_of_a_step_stands(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.report(0, 1, 10, {"loss": 0.5}, PLACE)
        ledger.report(0, 1, 10, {"loss": 0.1}, None)
        (entry,) = ledger.load()
        assert (entry.reports, entry.place) == ({10: {"loss": 0.5}}, PLACE)

    def test_what_a_person_wants_reaches_the_driver(self, subject):
        assert subject.ledger.intent() == "run"
        subject.cancel()
        assert subject.ledger.intent() == "cancel"

    def test_the_end_of_an_experiment_closes_its_trials(self, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.end("cancelled")
        ledger.end("completed")
        assert ledger.load()[0].state == "cancelled"

    def test_it_travels_to_another_process(self, ledger):
        ledger.set_run(None, "parent", "1")
        assert pickle.loads(pickle.dumps(ledger)).experiment_run() == "parent"

    def test_a_driver_with_a_successor_can_neither_write_nor_go_on(self, subject):
        ledger = subject.ledger
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        subject.replace_driver()
        for write in (
            lambda: ledger.begin(0),
            lambda: ledger.set_total(3),
            lambda: ledger.end_round(20, {}),
            lambda: ledger.end("completed"),
            ledger.intent,
        ):
            with pytest.raises(StaleWriteError):
                write()


class TestRecordLedger:
    def test_the_end_of_an_experiment_is_told_once(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.end("cancelled")
        ledger.end("completed")
        kinds = [event.kind for event in record.events(ledger.experiment_id)]
        assert kinds[-2:] == ["trial.cancelled", "experiment.cancelled"]

    @pytest.mark.parametrize("after", ["pause", "end"])
    def test_notices_are_kept_while_they_last_and_each_change_is_an_event(
        self, record, spec, after
    ):
        ledger = post_and_claim(record, spec())
        low = Notice("disk", "new trials wait: the disk is nearly full")
        for told in ([], [low], [low], [], [low]):
            ledger.tell(told)
            assert record.row(ledger.experiment_id).notices == ([low.to_dict()] if told else None)
        events = [e for e in record.events(ledger.experiment_id) if e.kind == "experiment.notice"]
        assert [e.data["reason"] for e in events] == [low.words, None, low.words]
        if after == "pause":
            record.pause(ledger.experiment_id)
            ledger.pause()
        else:
            ledger.end("completed")
        assert record.row(ledger.experiment_id).notices is None
        ledger.tell([low])
        assert record.row(ledger.experiment_id).notices is None, "it has no driver any more"

    def test_why_it_is_not_delivered_is_told_after_its_end_and_until_it_is(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.end("completed")
        away = Notice("delivery", "not delivered yet: MLflow does not answer")
        ledger.tell([away])
        assert record.row(ledger.experiment_id).notices == [away.to_dict()]
        ledger.set_tracked(None)
        assert record.row(ledger.experiment_id).notices is None

    def test_a_delivery_that_is_held_is_told_and_its_driver_shut_out(self, record, spec):
        ledger = post_and_claim(record, spec())
        id = ledger.experiment_id
        record.hold_delivery(id, "it runs yet")
        assert ledger.intent() == "run"
        ledger.end("completed")
        record.hold_delivery(id, "others are first")
        with pytest.raises(StaleWriteError):
            ledger.set_tracked(None)
        assert [n["words"] for n in record.row(id).notices] == [
            "not delivered yet: others are first"
        ]
        record.delete(id)
        record.hold_delivery(id, "it is being deleted")
        record.remove(id)
        record.hold_delivery(id, "it is gone")
        assert not Jobs(record.url).has_open("deletion")

    def test_a_cancellation_that_was_accepted_at_the_end_is_what_is_recorded(self, record, spec):
        ledger = post_and_claim(record, spec())
        record.cancel(ledger.experiment_id)
        assert ledger.end("completed") == "cancelled"
        assert record.row(ledger.experiment_id).state == "cancelled"
        ledger = post_and_claim(record, spec())
        assert ledger.end("completed") == "completed"
        with pytest.raises(WrongStateError):
            record.cancel(ledger.experiment_id)

    def test_a_result_is_stored_under_the_names_that_it_was_always_stored_under(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        one = ReplicateResult(seed=3, outcome="completed", value=0.25, best_step=90, step=100)
        result = dataclasses.replace(RESULT, by_replicate=(one,), reused_from=Source("e0", 1, "r"))
        ledger.report(0, 1, 100, {}, PLACE)
        ledger.finish(0, 1, "completed", result)
        stored = record.trial(ledger.experiment_id, 0)
        assert stored.attempts[0].place == {
            "node": "here",
            "pid": 7,
            "device": "cpu",
            "lanes": None,
            "node_id": None,
        }
        measures = {
            "outcome": "completed", "value": 0.25, "best_step": 90, "step": 100,
            "valid": {}, "test": {}, "seconds": 0.0,
        }  # fmt: skip
        assert stored.trial.result == {
            **measures,
            "parameters": None,
            "baseline": None,
            "constraint": {},
            "replicates": 1,
            "standard_error": {"value": None},
            "interval": {"value": None},
            "by_replicate": [{"seed": 3, **measures}],
            "reused_from": {"experiment": "e0", "number": 1, "run_id": "r"},
        }

    def test_a_result_from_before_there_were_younger_keys_is_read(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.finish(0, ledger.begin(0), "completed", RESULT)
        old = {"outcome": "completed", "value": 0.25, "step": 100, "best_step": 90}

        def write(session: Session) -> None:
            session.get_one(TrialRow, (ledger.experiment_id, 0)).result = old

        database.write(record.url, write)
        assert ledger.load()[0].result == RESULT

    def test_writers_in_parallel_lose_nothing(self, each_url, spec):
        ledgers = [post_and_claim(Record(each_url), spec(name=f"e{i}")) for i in range(4)]

        def drive(ledger: RecordLedger) -> None:
            for number in range(5):
                ledger.open(number, "scornn", {}, CONFIG, f"{ledger.experiment_id}{number}")
                attempt = ledger.begin(number)
                ledger.report(number, attempt, 100, {"loss": 1.0}, PLACE)
                ledger.finish(number, attempt, "completed", RESULT)

        threads = [threading.Thread(target=drive, args=(ledger,)) for ledger in ledgers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for ledger in ledgers:
            assert [e.state for e in ledger.load()] == ["completed"] * 5
            events = Record(each_url).events(ledger.experiment_id)
            assert len(events) == 3 + 5 * 3
            assert [e.id for e in events] == sorted(e.id for e in events)

    def test_a_locked_database_is_waited_for(self, record, spec, monkeypatch, caplog):
        ledger = dataclasses.replace(post_and_claim(record, spec()), patience=PATIENCE)
        monkeypatch.setattr(database, "BUSY_SECONDS", 0)
        database.engine.cache_clear()
        path = record.url.removeprefix("sqlite:///")
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=ledger.set_total, args=[7])
        writer.start()
        wait_until(lambda: "database away" in caplog.text, lambda: caplog.text)
        assert writer.is_alive()
        other.execute("COMMIT")
        writer.join(PATIENCE)
        assert record.row(ledger.experiment_id).total == 7
        other.close()

    def test_a_server_that_restarts_is_waited_for(self, postgresql_server, spec):
        migrate(postgresql_server.url)
        ledger = dataclasses.replace(
            post_and_claim(Record(postgresql_server.url), spec()), patience=PATIENCE
        )
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        postgresql_server.stop()
        threading.Timer(1.0, postgresql_server.start).start()
        assert ledger.begin(0) == 1
        database.engine(postgresql_server.url).dispose()

    @pytest.mark.parametrize(
        "outcome", ["pruned", "diverged", "stalled", "failed", "cancelled", "reused"]
    )
    def test_no_result_but_a_completed_one_is_found_again(self, record, spec, outcome):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, outcome, RESULT)
        assert ledger.find_finished("abc", 3, 1, 100) is None
        assert ledger.find_shorter("abc", 3, 1, 200) is None

    def test_a_begin_whose_answer_was_lost_is_counted_once(self, record, spec, monkeypatch):
        ledger = dataclasses.replace(post_and_claim(record, spec()), patience=PATIENCE)
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        transact, answers = database._transact, []

        def lose_the_first_answer(*arguments: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return transact(*arguments)  # a service of another test looks at its queue
            answers.append(transact(*arguments))
            if len(answers) == 1:
                raise OperationalError("COMMIT", {}, ConnectionError("the answer was lost"))
            return answers[-1]

        monkeypatch.setattr(database, "_transact", lose_the_first_answer)
        assert ledger.begin(0) == 1
        assert len(answers) == 2
        assert (ledger.load()[0].attempt, ledger.begin(0)) == (1, 2)

    def test_a_report_that_comes_again_changes_nothing_and_is_one_event(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        for _ in range(2):
            ledger.report(0, 1, 10, {"loss": 1.0}, PLACE)
        assert ledger.load()[0].reports == {10: {"loss": 1.0}}
        kinds = [event.kind for event in record.events(ledger.experiment_id)]
        assert kinds.count("trial.report") == 1

    def test_a_trial_never_falls_behind_the_step_it_has_reached(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.report(0, 1, 20, {"loss": 1.0}, PLACE)
        ledger.report(0, 1, 10, {"loss": 2.0}, PLACE)
        assert record.trial(ledger.experiment_id, 0).trial.step == 20
        ledger.finish(0, 1, "failed", Result(step=15))
        assert record.trial(ledger.experiment_id, 0).trial.step == 20

    def test_a_trial_with_more_seeds_ranks_before_better_means_of_fewer(self, record, spec):
        ledger = post_and_claim(record, spec())
        for number, value in enumerate((0.1, 0.4, 0.3)):
            ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
            ledger.finish(number, ledger.begin(number), "completed", Result(value=value, step=100))
        for number, value in ((1, 0.5), (2, 0.6)):
            ledger.reopen(number, CONFIG | {"replicates": 3}, "seeds 4 to 5 of the race")
            assert self.ranking(record, ledger) == ([0, 2, 1] if number == 1 else [1, 0, 2])
            result = Result(value=value, step=100, replicates=3)
            ledger.finish(number, ledger.begin(number), "completed", result)
        assert self.ranking(record, ledger) == [1, 2, 0]
        assert record.experiment(ledger.experiment_id).best.trial.number == 1
        ledger.reopen(1, CONFIG | {"replicates": 5}, "seeds 6 to 7 of the race")
        ledger.finish(1, ledger.begin(1), "diverged", Result(step=3, replicates=5))
        assert self.ranking(record, ledger) == [2, 0]

    def ranking(self, record: Record, ledger: RecordLedger) -> list[int]:
        return record.ranked(ledger.experiment_id, lambda number, result: number)

    def test_that_a_trial_was_opened_again_and_kept_is_an_event(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.finish(0, ledger.begin(0), "completed", RESULT)
        ledger.reopen(0, CONFIG | {"replicates": 2}, "seed 4 of the race")
        ledger.finish(0, ledger.begin(0), "failed", None, "Traceback\nKeyError: 'x'")
        told = [(e.kind, e.data.get("reason")) for e in record.events(ledger.experiment_id)]
        assert ("trial.reopened", "seed 4 of the race") in told
        assert told[-1] == ("trial.kept", "failed: KeyError: 'x'")

    def test_a_ledger_without_patience_raises(self, tmp_path):
        away = RecordLedger(f"sqlite:///{tmp_path}/nowhere/record.db", "e", 1, patience=0)
        with pytest.raises(OperationalError):
            away.load()


def test_with_sqlite_only_the_begin_of_an_attempt_waits_for_the_disk(each_url, spec):
    ledger = post_and_claim(Record(each_url), spec())
    is_sqlite = each_url.startswith("sqlite")
    question = "PRAGMA synchronous" if is_sqlite else "SHOW synchronous_commit"
    waits = {1: False, 2: True, "off": False, "on": True}
    found = []

    def note(connection: Connection) -> None:
        found.append(waits[connection.exec_driver_sql(question).scalar_one()])

    event.listen(database.engine(each_url), "commit", note)
    for number in (0, 1):
        ledger.open(number, "scornn", {}, CONFIG, "abc")
        ledger.begin(number)
        ledger.report(number, 1, 10, {"valid/loss": 0.5}, PLACE)
        ledger.finish(number, 1, "completed", RESULT)
    assert found == [not is_sqlite, True, not is_sqlite, not is_sqlite] * 2


def test_a_driver_s_process_holds_few_connections_and_a_service_s_many():
    here = RecordLedger("postgresql://me@nowhere/here", "e", 1)
    urls = here.database_url, "postgresql://me@nowhere/there"
    pickle.loads(pickle.dumps(dataclasses.replace(here, database_url=urls[1])))
    assert [database.engine(url).pool.size() for url in urls] == [10, 2]

"""What the record's ledger does beside the contract: events, ranks, locks and restarts."""

from __future__ import annotations

import dataclasses
import pickle
import sqlite3
import threading
from typing import Any

import pytest
from helpers.open_jobs import has_open
from sqlalchemy import Connection, event
from sqlalchemy.exc import OperationalError
from test_ledger_contract import CONFIG, PLACE, RESULT, post_and_claim
from waiting import PATIENCE, wait_until

from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import Notice
from eigensweep.results.trial_result import ReplicateResult, Result, Source
from eigensweep.service.record.errors import WrongStateError
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.migrations import migrate
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import TrialRow


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
    def test_notices_are_kept_and_each_change_is_an_event(self, record, spec, after):
        ledger = post_and_claim(record, spec())
        low = Notice("disk", "new trials wait: the disk is nearly full")
        for told in ([], [low], [low], [], [low]):
            ledger.record_notices(told)
            assert record.row(ledger.experiment_id).notices == ([low.to_dict()] if told else None)
        events = [e for e in record.events(ledger.experiment_id) if e.kind == "experiment.notice"]
        assert [e.data["reason"] for e in events] == [low.words, None, low.words]
        if after == "pause":
            record.pause(ledger.experiment_id)
            ledger.pause()
        else:
            ledger.end("completed")
        assert record.row(ledger.experiment_id).notices is None
        ledger.record_notices([low])
        assert record.row(ledger.experiment_id).notices is None, "it has no driver any more"

    def test_an_end_tells_why_it_is_not_delivered_yet(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.end("completed")
        away = Notice("delivery", "not delivered yet: MLflow does not answer")
        ledger.record_notices([away])
        assert record.row(ledger.experiment_id).notices == [away.to_dict()]
        ledger.set_tracked()
        assert record.row(ledger.experiment_id).notices is None

    def test_what_code_trained_it_is_told_after_the_end(self, record, spec):
        ledger = post_and_claim(record, spec())
        mixed = Notice("code", "the package has changed since trial 2 began")
        away = Notice("delivery", "not delivered yet: MLflow does not answer")
        ledger.record_notices([mixed, Notice("disk", "nearly full")])
        ledger.end("completed")
        assert record.row(ledger.experiment_id).notices == [mixed.to_dict()]
        assert not record.list_unfinished()[0].is_told, "nothing of its delivery"
        ledger.record_notices([away])
        known = record.row(ledger.experiment_id).notices
        assert known == [mixed.to_dict(), away.to_dict()]
        assert record.list_unfinished()[0].is_told
        ledger.set_tracked()
        assert record.row(ledger.experiment_id).notices == [mixed.to_dict()]

    def test_an_error_that_is_no_text_is_recorded(self, record, spec):
        ledger = post_and_claim(record, spec())
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.finish(0, ledger.begin(0), "failed", None, "no file caf\udce9\0")
        assert record.trial(ledger.experiment_id, 0).trial.error == "no file caf?"

    def test_a_held_delivery_is_told_and_its_driver_shut_out(self, record, spec):
        ledger = post_and_claim(record, spec())
        id = ledger.experiment_id
        record.hold_delivery(id, "it runs yet")
        assert ledger.intent() == "run"
        ledger.end("completed")
        record.hold_delivery(id, "others are first")
        with pytest.raises(StaleWriteError):
            ledger.set_tracked()
        assert [n["words"] for n in record.row(id).notices] == [
            "not delivered yet: others are first"
        ]
        record.delete(id)
        record.hold_delivery(id, "it is being deleted")
        record.remove(id)
        record.hold_delivery(id, "it is gone")
        assert not has_open(Jobs(record.url), "deletion")

    def test_what_was_completed_cannot_be_cancelled_any_more(self, record, spec):
        ledger = post_and_claim(record, spec())
        assert ledger.end("completed")[0] == "completed"
        assert record.row(ledger.experiment_id).state == "completed"
        with pytest.raises(WrongStateError):
            record.cancel(ledger.experiment_id)

    def test_a_result_is_stored_under_the_names_of_old(self, record, spec):
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

        def write(session: RowSession) -> None:
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
        monkeypatch.setattr(database, "BUSY_SECONDS", 0)  # before there is an engine
        ledger = dataclasses.replace(post_and_claim(record, spec()), patience=PATIENCE)
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

    def test_a_report_that_comes_again_changes_nothing(self, record, spec):
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

    def test_a_trial_has_come_as_far_as_its_furthest_seed(self, record, spec):
        ledger = post_and_claim(record, spec())
        seeds = [ReplicateResult(seed=seed, step=step) for seed, step in enumerate([5, 1000])]
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        ledger.finish(0, 1, "diverged", Result(step=5, by_replicate=tuple(seeds)))
        assert record.trial(ledger.experiment_id, 0).trial.step == 1000

    def test_more_seeds_rank_before_better_means_of_fewer(self, record, spec):
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


def test_only_the_begin_of_an_attempt_waits_for_the_disk(each_url, spec):
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


def test_a_driver_holds_few_connections_and_a_service_many():
    here = RecordLedger("postgresql://me@nowhere/here", "e", 1)
    urls = here.url, "postgresql://me@nowhere/there"
    pickle.loads(pickle.dumps(dataclasses.replace(here, url=urls[1])))
    assert [database.engine(url).pool.size() for url in urls] == [10, 2]

"""The dispatcher over a real record, with drivers that only say what a test lets them say."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from dataclasses import replace
from functools import partialmethod
from itertools import pairwise
from typing import Any

import pytest
from clocks import Clock
from sqlalchemy import text
from sqlalchemy.exc import OperationalError
from waiting import wait_until

from eigensweep.common import logs
from eigensweep.protocol.ledger import StaleWriteError, SupersededError
from eigensweep.protocol.messages import DriverOptions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service import store_probe
from eigensweep.service.queue.dispatcher import (
    LEAST_INTERVAL,
    LONGEST_PAUSE,
    MLFLOW_SECONDS,
    MOST_DEATHS,
    STOP_SECONDS,
    Dispatcher,
)
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.places.folder_files import FolderFiles
from eigensweep.workers import deaths
from eigensweep.workers.deaths import Death, explain

OPTIONS = DriverOptions(storage="/storage")


@pytest.fixture
def post(record: Record, spec: Any) -> Any:
    """Return a function that queues an experiment and gives its id."""

    def post_spec(**changes: Any) -> str:
        return record.add(ExperimentSpec.model_validate(spec(**changes)))[0].id

    return post_spec


def ids(launcher: Any) -> list[str]:
    return [driver.ledger.experiment_id for driver in launcher.launched]


class TestDispatcher:
    def test_it_starts_as_many_as_it_may_and_the_rest_later(
        self, dispatcher, launcher, record, post
    ):
        first, second, third = post(), post(), post()
        dispatcher.tick()
        assert ids(launcher) == [first, second]
        assert record.row(third).state == "queued"
        launcher.launched[0].ledger.end("completed")
        dispatcher.tick()
        assert ids(launcher) == [first, second, third]

    def test_it_orders_the_queue_only_where_one_could_start(
        self, dispatcher, launcher, record, post, monkeypatch
    ):
        works, looks = record.list_queued, []

        def look(limit: int) -> list[str]:
            looks.append(limit)
            return works(limit)

        monkeypatch.setattr(record, "list_queued", look)
        posted = [post() for _ in range(4)]
        for _ in range(3):
            dispatcher.tick()
        assert (ids(launcher), len(looks)) == (posted[:2], 1)
        launcher.launched[0].ledger.end("completed")
        dispatcher.tick()
        assert (ids(launcher), len(looks)) == (posted[:3], 2)

    def test_one_that_could_not_start_is_forgotten_once_cancelled(
        self, dispatcher, launcher, record, post, monkeypatch
    ):
        broken, works = post(), record.claim
        claim = lambda id, **_: fail() if id == broken else works(id)  # noqa: E731
        monkeypatch.setattr(record, "claim", claim)
        others = [post(), post()]
        for _ in range(2):
            dispatcher.tick()
        assert (ids(launcher), list(dispatcher.problems)) == (others, [broken])
        record.cancel(broken)
        dispatcher.tick()
        assert dispatcher.problems == {}

    def test_what_fails_can_be_asked_while_the_queue_is_looked_at(self, dispatcher):
        class Failing:
            @property
            def problem(self) -> str:
                dispatcher._supervised[f"e{len(dispatcher._supervised)}"] = Failing()
                return "away"

        dispatcher._supervised = {"e0": Failing()}
        assert dispatcher.problems == {"e0": "away"}

    def test_each_user_gets_one_before_anybody_has_another(
        self, dispatcher, launcher, record, spec
    ):
        dispatcher.max_of_all = 4

        def post(owner: str, priority: int = 0) -> str:
            parsed = ExperimentSpec.model_validate(spec(priority=priority))
            return record.add(parsed, owner=owner)[0].id

        anna = [post("anna") for _ in range(3)]
        dispatcher.tick()
        assert ids(launcher) == anna[:2]
        others = [post("ben"), post("cleo", -5)]
        urgent, last = post("ben", 5), post("dora")
        dispatcher.tick()
        assert ids(launcher) == [*anna[:2], urgent, last], "cleo's has a lower priority"
        launcher.launched[0].ledger.end("completed")
        launcher.launched[0].ledger.set_tracked()
        dispatcher.tick()
        assert ids(launcher)[4:] == [others[1]], "anna has one that runs, cleo has none"
        for driver in launcher.launched[2:]:
            driver.ledger.end("completed")
            driver.ledger.set_tracked()
        dispatcher.tick()
        assert ids(launcher)[5:] == [others[0]]

    def test_the_next_is_started_while_the_last_is_delivered(self, dispatcher, launcher, post):
        dispatcher.max_experiments = 1
        post(), post()
        dispatcher.tick()
        launcher.launched[0].ledger.end("completed")
        dispatcher.tick()
        assert len(launcher.launched) == 2

    def test_a_driver_that_died_gets_a_successor_that_shuts_it_out(
        self, dispatcher, launcher, post
    ):
        post()
        dispatcher.tick()
        launcher.launched[0].now = "died"
        dispatcher.tick()
        generations = [driver.ledger.generation for driver in launcher.launched]
        assert generations == [1, 2]
        with pytest.raises(RuntimeError, match="successor"):
            launcher.launched[0].ledger.set_total(1)

    def test_a_driver_that_ends_with_work_left_counts_as_dead(self, dispatcher, launcher, post):
        post()
        dispatcher.tick()
        launcher.launched[0].now = "ended"
        dispatcher.tick()
        assert len(launcher.launched) == 2

    def test_drivers_that_keep_dying_fail_the_experiment(self, record, launcher, post):
        clock = iter(range(0, 10**9, 1000))
        dispatcher = Dispatcher(
            record, launcher=launcher, options=OPTIONS, clock=lambda: next(clock)
        )
        id = post()
        told = []
        for _ in range(MOST_DEATHS + 2):
            dispatcher.tick()
            launcher.launched[-1].now = "died"
            told += [(each["kind"], each["words"]) for each in record.row(id).notices or ()]
        assert ("driver", "its driver died and is started again: out of luck") in told
        row = record.row(id)
        assert row.state == "failed"
        assert f"died {MOST_DEATHS} times without any progress: out of luck" in str(row.error)

    def test_drivers_killed_while_trials_train_on_are_no_failure(
        self, record, launcher, post, tmp_path
    ):
        clock = iter(range(0, 10**9, 1000))
        options = replace(OPTIONS, storage=str(tmp_path))
        dispatcher = Dispatcher(
            record, launcher=launcher, options=options, clock=lambda: next(clock)
        )
        id, store = post(), Store(tmp_path)
        key = replicate_key(id, 0, seed=0)

        def live_and_die(step: int) -> int:
            """Let the next driver's trial commit a step, if any is given, before it dies."""
            dispatcher.tick()
            ledger = launcher.launched[-1].ledger
            ledger.open(0, "scornn", {}, {"training": {"steps": 99}, "replicates": 1}, "h")
            attempt = ledger.begin(0)
            if step:
                store.begin(key, attempt)
                store.commit(key, attempt, step, {}, [])
            launcher.launched[-1].now = "died"
            return len(launcher.launched)

        for step in range(1, 3 * MOST_DEATHS):
            assert live_and_die(step) == step
        for _ in range(MOST_DEATHS - 1):
            live_and_die(0)
        assert record.row(id).state != "failed"
        dispatcher.tick()
        assert record.row(id).state == "failed", "no step was committed any more"

    def test_a_death_while_the_store_hangs_is_not_counted(
        self, record, launcher, post, tmp_path, monkeypatch
    ):
        goes_on = threading.Event()
        monkeypatch.setattr(store_probe, "PATIENCE_SECONDS", 0.1)
        monkeypatch.setattr(store_probe, "FRESH_SECONDS", 0.0)

        def hang(files: FolderFiles, works: Any, path: str) -> Any:
            goes_on.wait(60)
            return works(files, path)

        for works in (FolderFiles.names, FolderFiles.size):
            monkeypatch.setattr(FolderFiles, works.__name__, partialmethod(hang, works))
        clock = iter(range(0, 10**9, 1000))
        options = replace(OPTIONS, storage=str(tmp_path))
        dispatcher = Dispatcher(
            record, launcher=launcher, options=options, clock=lambda: next(clock)
        )
        id = post()
        for _ in range(MOST_DEATHS + 2):
            dispatcher.tick()
            launcher.launched[-1].ledger.open(
                0, "scornn", {}, {"training": {"steps": 99}, "replicates": 1}, "h"
            )
            launcher.launched[-1].ledger.begin(0)
            launcher.launched[-1].now = "died"
        assert not goes_on.is_set()
        assert len(launcher.launched) > MOST_DEATHS
        assert record.row(id).state != "failed"
        goes_on.set()

    @pytest.mark.parametrize(
        "death",
        [
            Death("the node is low on memory", "memory"),
            Death("no Ray answers at head:6379", "ray"),
            Death("cannot list s3://lab/x: connection refused", "store"),
            Death("nobody saw how its process ended", "unseen"),
        ],
    )
    @pytest.mark.quick_cases(2)
    def test_deaths_that_are_not_the_drivers_own_never_count(self, record, launcher, post, death):
        now = [0.0]
        dispatcher = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=lambda: now[0])
        id = post()
        dispatcher.tick()
        for _ in range(2 * MOST_DEATHS):
            launcher.launched[-1].now = "died"
            launcher.launched[-1].death = death
            before = len(launcher.launched)
            dispatcher.tick()
            while len(launcher.launched) == before:
                now[0] += 10.0
                dispatcher.tick()
        row = record.row(id)
        assert row.state != "failed"
        assert [(each["kind"], each["words"]) for each in row.notices] == [
            ("driver", f"its driver died and is started again: {death}")
        ]
        assert 300 < now[0] < 2 * MOST_DEATHS * LONGEST_PAUSE, "after growing pauses"

    def test_without_a_thread_a_death_is_not_the_drivers_own(
        self, record, launcher, post, monkeypatch
    ):
        now, crowd = [0.0], "950 processes and threads run of 1,000 that ulimit -u allows"
        monkeypatch.setattr(deaths, "find_crowd", lambda: crowd)
        dispatcher = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=lambda: now[0])
        id = post()
        dispatcher.tick()
        for _ in range(2 * MOST_DEATHS):
            launcher.launched[-1].now = "died"
            launcher.launched[-1].death = explain(RuntimeError("can't start new thread"))
            for _ in range(40):
                now[0] += 10.0
                dispatcher.tick()
        row = record.row(id)
        assert row.state != "failed"
        (notice,) = row.notices
        assert notice["words"].endswith(f"RuntimeError: can't start new thread; {crowd}")

    def test_a_bug_counts_however_few_threads_are_left(self, record, launcher, post, monkeypatch):
        monkeypatch.setattr(deaths, "find_crowd", lambda: "950 of 1,000 run")
        now = [0.0]
        dispatcher = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=lambda: now[0])
        id = post()
        dispatcher.tick()
        for _ in range(MOST_DEATHS):
            launcher.launched[-1].now = "died"
            launcher.launched[-1].death = explain(ValueError("a bug"))
            for _ in range(40):
                now[0] += 10.0
                dispatcher.tick()
        row = record.row(id)
        assert row.state == "failed"
        assert "ValueError: a bug" in row.error

    @pytest.mark.parametrize("ask", ["pause", "cancel"])
    def test_one_that_does_not_stop_its_trials_is_replaced(self, record, launcher, post, ask):
        now = [0.0]
        dispatcher = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=lambda: now[0])
        id = post()
        dispatcher.tick()
        now[0] = 10 * STOP_SECONDS
        dispatcher.tick()
        getattr(record, ask)(id)
        for seconds in (0, STOP_SECONDS - 1):
            now[0] = 10 * STOP_SECONDS + seconds
            dispatcher.tick()
            assert launcher.launched[-1].now == "running"
        now[0] += 1
        for _ in range(3):
            dispatcher.tick()
            now[0] += LONGEST_PAUSE / 2
        assert [each.now for each in launcher.launched] == ["died", "running"]
        (notice,) = record.row(id).notices
        assert "it had not stopped its trials 300 s after it was asked to" in notice["words"]

    def test_pauses_begin_anew_after_a_driver_that_was_at_work(self, record, launcher, post):
        now = [0.0]
        dispatcher = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=lambda: now[0])
        post()
        dispatcher.tick()
        for _ in range(8):
            now[0] += LONGEST_PAUSE + 1.0
            launcher.launched[-1].now = "died"
            launcher.launched[-1].death = Death("the node is low on memory", "memory")
            died_at, before = now[0], len(launcher.launched)
            while len(launcher.launched) == before:
                dispatcher.tick()
                now[0] += 0.5
            assert now[0] - died_at < 5.0

    def test_a_driver_that_has_a_successor_ends_and_is_no_death(self, record, launcher, post):
        clock = iter(range(0, 10**9, 1000))
        dispatcher = Dispatcher(
            record, launcher=launcher, options=OPTIONS, clock=lambda: next(clock)
        )
        id = post()
        dispatcher.tick()
        for _ in range(2 * MOST_DEATHS):
            driver = launcher.launched[-1]
            record.claim(id)  # as another service does
            with pytest.raises(SupersededError) as error:
                driver.ledger.set_total(1)
            driver.now, driver.death = "ended", explain(error.value)
            dispatcher.tick()
        assert (record.row(id).state, record.row(id).deaths) == ("starting", 0)
        assert len(launcher.launched) == 2 * MOST_DEATHS + 1

    def test_it_goes_on_at_once_when_a_lost_ray_is_back(self, dispatcher, launcher, record, post):
        id = post()
        dispatcher.tick()
        for _ in range(2 * MOST_DEATHS):
            launcher.launched[-1].now = "lost"
            before = len(launcher.launched)
            dispatcher.tick()
            dispatcher.tick()
            assert len(launcher.launched) == before + 1
        assert (record.row(id).state, record.row(id).deaths) == ("starting", 0)

    def test_an_ended_experiment_gets_a_driver_until_mlflow_has_all(self, record, launcher, post):
        clock = iter(range(0, 10**9, 1000))
        dispatcher = Dispatcher(
            record, launcher=launcher, options=OPTIONS, clock=lambda: next(clock)
        )
        id = post()
        dispatcher.tick()
        launcher.launched[0].ledger.end("completed")
        launcher.launched[0].now = "ended"
        dispatcher.tick()
        dispatcher.tick()
        assert ids(launcher) == [id, id]
        launcher.launched[1].ledger.set_tracked()
        launcher.launched[1].now = "ended"
        for _ in range(3):
            dispatcher.tick()
        assert ids(launcher) == [id, id]

    def test_one_deleted_while_it_is_looked_at_gets_no_driver(
        self, dispatcher, launcher, record, post, monkeypatch
    ):
        id = post()
        RecordLedger(record.url, id, record.claim(id).generation).end("completed")
        monkeypatch.setattr(launcher, "find", record.delete)  # after the list, before the claim
        dispatcher.tick()
        assert (launcher.launched, record.row(id).state) == ([], "deleting")
        assert dispatcher.problems == {}

    def test_a_new_service_finds_drivers_that_outlived_the_old(
        self, dispatcher, launcher, record, post, monkeypatch
    ):
        id = post()
        dispatcher.tick()
        launcher.survivors[id] = launcher.launched[0]
        after = Dispatcher(record, launcher=launcher, options=OPTIONS)
        after.tick()
        assert ids(launcher) == [id]
        claims: list[Any] = []
        monkeypatch.setattr(record, "claim", lambda id, **how: claims.append(how))
        launcher.launched[0].now = "died"
        after.clock = lambda: time.monotonic() + 1000
        after.tick()
        (how,) = claims
        assert how["outlived"], "what it has worked without a service counts"
        assert time.time() - how["gone_at"] < 60, "but not the time in which it was dead"

    def test_a_new_service_starts_again_what_died_with_the_old(
        self, dispatcher, launcher, record, post
    ):
        running, waiting = post(), post()
        dispatcher.max_experiments = 1
        dispatcher.tick()
        Dispatcher(record, max_experiments=1, launcher=launcher, options=OPTIONS).tick()
        assert ids(launcher) == [running, running]
        assert record.row(running).deaths == 0
        assert record.row(waiting).state == "queued"


class TestDeliveries:
    """Experiments that are over, and that MLflow does not hold yet."""

    @pytest.fixture
    def clock(self, dispatcher: Dispatcher) -> Clock:
        dispatcher.clock = Clock()
        return dispatcher.clock

    def let_drivers_see(self, launcher: Any, delivers: bool = False) -> int:
        """Let each driver do as a real one; return how many there were.

        Its search ends at once, and it ends when MLflow has taken all, or when it is shut out.
        """
        living = [driver for driver in launcher.launched if driver.now == "running"]
        for driver in living:
            try:
                driver.ledger.end("completed")
                if delivers:
                    driver.ledger.set_tracked()
                    driver.now = "ended"
            except StaleWriteError:
                driver.now = "ended"
        return len(living)

    def test_those_that_are_tried_again_count_for_the_queue_alone(
        self, dispatcher, launcher, record, post, clock
    ):
        posted: list[str] = []
        for _ in range(2):
            posted += [post(), post()]
            dispatcher.tick()
            for driver in launcher.launched[-2:]:
                driver.ledger.end("failed", "no luck")
        dispatcher.tick()
        assert ids(launcher) == posted, "and all four still deliver"
        for id in posted:
            record.retry(id)
        for driver in launcher.launched:
            driver.now = "ended"  # it was shut out
        dispatcher.tick()
        assert ids(launcher)[4:] == posted[:2]

    @pytest.mark.parametrize("of_all", [0, 8])
    @pytest.mark.quick_cases(1)
    def test_those_that_wait_for_mlflow_keep_few_drivers(
        self, dispatcher, launcher, record, post, clock, of_all
    ):
        dispatcher.max_of_all = of_all
        posted, most = [post() for _ in range(6)], 0
        for _ in range(200):
            dispatcher.tick()
            most = max(most, self.let_drivers_see(launcher))
            clock.now += 1.0
        assert {record.row(id).state for id in posted} == {"completed"}
        assert most <= 2 + 2
        assert dispatcher.max_drivers == max(2, of_all) + 2
        notices = [record.row(id).notices for id in posted]
        told = "not delivered yet: others are delivered first"
        assert [{"kind": "delivery", "words": told}] in [
            [{k: n[k] for k in ("kind", "words")} for n in each or ()] for each in notices
        ]
        for _ in range(80):
            for _ in range(10):
                dispatcher.tick()
                self.let_drivers_see(launcher, delivers=True)
                clock.now += 1.0
            rows = [record.row(id) for id in posted]
            if all(row.tracked for row in rows):
                break
        assert all(row.tracked and row.notices is None for row in rows)

    def test_while_mlflow_is_away_none_is_begun_and_each_says_why(
        self, dispatcher, launcher, record, post, clock
    ):
        id = post()
        RecordLedger(record.url, id, record.claim(id).generation).end("completed")
        dispatcher.find_mlflow_problem = lambda: "no answer (it timed out)"
        for _ in range(20):
            dispatcher.tick()
            clock.now += 1.0
        assert launcher.launched == []
        (notice,) = record.row(id).notices
        told = "not delivered yet: MLflow cannot be used: no answer (it timed out)"
        assert (notice["kind"], notice["words"]) == ("delivery", told)
        dispatcher.find_mlflow_problem = lambda: None
        clock.now += MLFLOW_SECONDS
        dispatcher.tick()
        self.let_drivers_see(launcher, delivers=True)
        assert (record.row(id).tracked, record.row(id).notices) == (True, None)

    def test_one_that_cannot_be_delivered_holds_up_no_other(
        self, dispatcher, launcher, record, post, clock
    ):
        posted = [post() for _ in range(6)]
        for id in posted:
            RecordLedger(record.url, id, record.claim(id).generation).end("completed")
        for _ in range(100):
            dispatcher.tick()
            for driver in launcher.launched:
                if driver.now == "running" and driver.ledger.experiment_id in posted[:4]:
                    driver.now = "died"
            self.let_drivers_see(launcher, delivers=True)
            clock.now += 1.0
        assert [record.row(id).tracked for id in posted] == [False] * 4 + [True] * 2

    def test_one_that_dies_again_and_again_is_logged_whole_once(
        self, dispatcher, launcher, record, post, clock, caplog
    ):
        id = post()
        RecordLedger(record.url, id, record.claim(id).generation).end("completed")
        begun = []
        for _ in range(200):
            dispatcher.tick()
            if len(launcher.launched) > len(begun):
                begun.append(clock.now)
                launcher.launched[-1].now = "died"
                words = "Traceback:\n  File x\nValueError: no number\n"
                launcher.launched[-1].death = Death(words)
            clock.now += 1.0
        assert len(begun) > 3
        (notice,) = record.row(id).notices
        assert f"died {len(begun)} times in a row" in notice["words"]
        assert notice["words"].endswith("ValueError: no number")
        assert caplog.text.count("File x") == 1
        pauses = [after - before for before, after in pairwise(begun)]
        assert pauses == sorted(pauses)
        assert pauses[-1] > 2 * pauses[0]


def fail(*_: Any) -> Any:
    raise ConnectionError("the driver's node does not answer")


class TestTrouble:
    """One experiment that cannot be looked after does not hold up the others."""

    @pytest.fixture
    def clock(self, dispatcher: Dispatcher) -> Clock:
        dispatcher.clock = Clock()
        return dispatcher.clock

    def test_a_driver_that_cannot_be_asked_holds_up_no_other(
        self, dispatcher, launcher, post, clock, monkeypatch, caplog
    ):
        broken, other, queued = post(), post(), post()
        dispatcher.tick()
        monkeypatch.setattr(launcher.launched[0], "state", fail)
        launcher.launched[1].ledger.end("completed")
        launcher.launched[1].ledger.set_tracked()
        for _ in range(20):
            clock.now += 0.5
            dispatcher.tick()
        assert ids(launcher) == [broken, other, queued]
        assert dispatcher.problems == {broken: "ConnectionError: the driver's node does not answer"}
        assert dispatcher.problem is None
        assert caplog.text.count("cannot be looked after") == 1

    def test_it_is_asked_again_with_growing_pauses_until_it_answers(
        self, dispatcher, launcher, post, clock, monkeypatch
    ):
        post()
        dispatcher.tick()
        (driver,), asked = launcher.launched, []
        monkeypatch.setattr(driver, "state", lambda: asked.append(clock.now) or fail())
        for _ in range(100):
            clock.now += 1
            dispatcher.tick()
        pauses = [after - before for before, after in pairwise(asked)]
        assert pauses == sorted(pauses)
        assert pauses[-1] >= 32
        monkeypatch.setattr(driver, "state", lambda: "running")
        clock.now += 1000
        dispatcher.tick()
        assert dispatcher.problems == {}
        assert launcher.launched == [driver]

    def test_a_driver_that_cannot_be_started_holds_up_no_other(
        self, dispatcher, launcher, record, post, clock, monkeypatch
    ):
        works, tried = launcher.launch, []
        broken, other = post(), post()

        def launch(id: str, *rest: Any) -> Any:
            if id == broken:
                tried.append(clock.now)
                fail()
            return works(id, *rest)

        monkeypatch.setattr(launcher, "launch", launch)
        for _ in range(20):
            clock.now += 0.5
            dispatcher.tick()
        assert ids(launcher) == [other]
        assert 1 < len(tried) < 6
        assert list(dispatcher.problems) == [broken]
        monkeypatch.setattr(launcher, "launch", works)
        clock.now += 1000
        dispatcher.tick()
        assert ids(launcher) == [other, broken]
        assert record.row(broken).deaths == 0

    def test_one_that_cannot_be_claimed_lets_the_next_pass(
        self, dispatcher, launcher, record, post, clock, monkeypatch
    ):
        works, (broken, *others) = record.claim, [post() for _ in range(3)]
        claim = lambda id, **_: fail() if id == broken else works(id)  # noqa: E731
        monkeypatch.setattr(record, "claim", claim)
        for _ in range(5):
            dispatcher.tick()
        assert ids(launcher) == others

    def test_a_row_that_the_database_refuses_lets_the_next_pass(
        self, dispatcher, launcher, record, post, clock
    ):
        broken, *others = [post() for _ in range(3)]
        refuse = (
            f"CREATE TRIGGER refuse BEFORE UPDATE ON experiments WHEN OLD.id = '{broken}' "
            "BEGIN SELECT RAISE(ABORT, 'value out of range'); END"
        )
        database.write(record.url, lambda rows: rows.execute(text(refuse)))
        for _ in range(3):
            clock.now += 0.5
            dispatcher.tick()
        assert ids(launcher) == others
        assert dispatcher.problems == {broken: "IntegrityError: value out of range"}

    def test_a_search_for_survivors_that_fails_is_made_again(
        self, dispatcher, launcher, record, post, clock, monkeypatch
    ):
        first, second = post(), post()
        dispatcher.tick()
        finds = launcher.find
        launcher.survivors = dict(zip((first, second), launcher.launched, strict=True))
        after = Dispatcher(record, launcher=launcher, options=OPTIONS, clock=clock)
        monkeypatch.setattr(launcher, "find", lambda id: fail() if id == first else finds(id))
        after.tick()
        assert list(after.problems) == [first]
        monkeypatch.setattr(launcher, "find", finds)
        clock.now += 1000
        after.tick()
        assert after.problems == {}
        assert ids(launcher) == [first, second]  # both were found, none was started again

    def test_while_the_database_is_away_nothing_is_started(
        self, dispatcher, launcher, record, post, monkeypatch
    ):
        def away(id: str, **how: Any) -> None:
            raise OperationalError("SELECT", {}, Exception("the server is gone"))

        post(), post()
        works = record.claim
        monkeypatch.setattr(record, "claim", away)
        with pytest.raises(OperationalError):
            dispatcher.tick()
        assert dispatcher.problems == {}
        monkeypatch.setattr(record, "claim", works)
        dispatcher.tick()
        assert len(launcher.launched) == 2

    def test_a_database_that_is_away_is_one_line_of_the_log(
        self, record, launcher, post, monkeypatch, caplog
    ):
        looks = []

        def away() -> None:
            looks.append("in vain")
            raise OperationalError("SELECT", {}, Exception("the server is gone"))

        dispatcher, works = Dispatcher(record, interval=0.02), record.list_unfinished
        monkeypatch.setattr(record, "list_unfinished", away)
        id = post()
        dispatcher.start(launcher, OPTIONS)
        try:
            wait_until(lambda: len(looks) >= 3)
            (told,) = [r for r in caplog.records if r.name.endswith("dispatcher")]
            assert "waits for the database" in told.getMessage()
            assert told.exc_info is None
            assert "the server is gone" in (dispatcher.problem or "")
            monkeypatch.setattr(record, "list_unfinished", works)
            wait_until(lambda: ids(launcher) == [id])
        finally:
            dispatcher.stop()

    def test_a_hundred_posts_at_once_are_few_looks_at_the_queue(
        self, record, launcher, monkeypatch
    ):
        dispatcher, look = Dispatcher(record), record.list_unfinished
        looks: list[float] = []

        def wake_and_look() -> Any:
            looks.append(time.monotonic())
            dispatcher.wake()  # as a post does that comes during a look
            return look()

        monkeypatch.setattr(record, "list_unfinished", wake_and_look)
        dispatcher.start(launcher, OPTIONS)
        try:
            wait_until(lambda: len(looks) >= 3)
        finally:
            dispatcher.stop()
        assert min(b - a for a, b in pairwise(looks)) >= LEAST_INTERVAL

    def test_a_cluster_without_drivers_is_told_and_tried_again(
        self, record, launcher, post, monkeypatch, caplog
    ):
        dispatcher = Dispatcher(record, interval=0.02)
        works = launcher.launch
        monkeypatch.setattr(launcher, "launch", fail)
        id = post()
        dispatcher.start(launcher, OPTIONS)
        try:
            wait_until(lambda: "does not answer" in (dispatcher.problem or ""))
            assert "does not answer" in caplog.text
            monkeypatch.setattr(launcher, "launch", works)
            wait_until(lambda: ids(launcher) == [id])
            wait_until(lambda: dispatcher.problem is None)
        finally:
            dispatcher.stop()


def test_lines_about_an_experiment_name_it_in_json(dispatcher, post):
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.make_formatter("json"))
    handler.addFilter(logs.add_subject)
    logger = logging.getLogger("eigensweep.service.queue.dispatcher")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    id = post()
    dispatcher.tick()
    logger.removeHandler(handler)
    logger.setLevel(level)

    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["experiment"] for line in lines] == [id]

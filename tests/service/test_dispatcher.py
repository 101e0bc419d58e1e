"""The dispatcher over a real record, with drivers that only say what a test lets them say."""

from __future__ import annotations

import time
from typing import Any

import pytest

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.posting import queued
from eigensweep.service.queue.dispatcher import MOST_DEATHS, Dispatcher
from eigensweep.service.record.record import Record


@pytest.fixture
def post(record: Record, spec: Any) -> Any:
    """Return a function that queues an experiment and gives its id."""

    def posted(**changes: Any) -> str:
        return record.add(queued(ExperimentSpec.model_validate(spec(**changes))))[0].id

    return posted


def ids(launcher: Any) -> list[str]:
    return [driver.ledger.experiment_id for driver in launcher.launched]


class TestDispatcher:
    def test_it_starts_no_more_than_it_may_and_the_rest_when_there_is_room(
        self, dispatcher, launcher, record, post
    ):
        first, second, third = post(), post(), post()
        dispatcher.tick()
        assert ids(launcher) == [first, second]
        assert record.row(third).state == "queued"
        launcher.launched[0].ledger.end("completed")
        dispatcher.tick()
        assert ids(launcher) == [first, second, third]

    def test_the_next_is_started_while_the_last_is_still_being_delivered(
        self, dispatcher, launcher, post
    ):
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

    def test_drivers_that_keep_dying_without_progress_fail_the_experiment(
        self, record, launcher, post
    ):
        clock = iter(range(0, 10**9, 1000))
        dispatcher = Dispatcher(record, launcher=launcher, clock=lambda: next(clock))
        id = post()
        for _ in range(MOST_DEATHS + 2):
            dispatcher.tick()
            launcher.launched[-1].now = "died"
        row = record.row(id)
        assert row.state == "failed"
        assert f"died {MOST_DEATHS} times without any progress: out of luck" in str(row.error)

    def test_an_ended_experiment_gets_a_driver_until_mlflow_has_all(self, record, launcher, post):
        clock = iter(range(0, 10**9, 1000))
        dispatcher = Dispatcher(record, launcher=launcher, clock=lambda: next(clock))
        id = post()
        dispatcher.tick()
        launcher.launched[0].ledger.end("completed")
        launcher.launched[0].now = "ended"
        dispatcher.tick()
        dispatcher.tick()
        assert ids(launcher) == [id, id]
        launcher.launched[1].ledger.set_tracked(None)
        launcher.launched[1].now = "ended"
        for _ in range(3):
            dispatcher.tick()
        assert ids(launcher) == [id, id]

    def test_a_new_service_finds_the_drivers_that_outlived_the_old_one(
        self, dispatcher, launcher, record, post
    ):
        id = post()
        dispatcher.tick()
        launcher.survivors[id] = launcher.launched[0]
        Dispatcher(record, launcher=launcher).tick()
        assert ids(launcher) == [id]

    def test_a_new_service_starts_again_what_did_not_outlive_the_old_one(
        self, dispatcher, launcher, record, post
    ):
        running, waiting = post(), post()
        dispatcher.max_experiments = 1
        dispatcher.tick()
        Dispatcher(record, max_experiments=1, launcher=launcher).tick()
        assert ids(launcher) == [running, running]
        assert record.row(running).deaths == 0
        assert record.row(waiting).state == "queued"

    def test_it_goes_on_when_a_launch_fails_and_says_so_meanwhile(
        self, record, launcher, post, monkeypatch, caplog
    ):
        def fail(*_: Any) -> None:
            raise ConnectionError("the cluster is away")

        dispatcher = Dispatcher(record, interval=0.02)
        works = launcher.launch
        monkeypatch.setattr(launcher, "launch", fail)
        id = post()
        dispatcher.start(launcher, None)
        try:
            wait_until(lambda: "cluster is away" in caplog.text)
            monkeypatch.setattr(launcher, "launch", works)
            wait_until(lambda: ids(launcher) == [id])
            wait_until(lambda: dispatcher.problem is None)
        finally:
            dispatcher.stop()


def wait_until(is_so: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)

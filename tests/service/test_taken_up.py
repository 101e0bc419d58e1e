"""Experiments that are over and are taken up again: their failed trials are tried again."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record import database
from eigensweep.service.record.ledger import CLOSED, RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.tables import Experiment
from eigensweep.workers.shared.ledger import StaleWriteError
from eigensweep.workers.shared.messages import Result

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


class Played:
    """An experiment whose driver the test plays."""

    def __init__(self, record: Record, content: dict[str, Any]) -> None:
        self.record = record
        self.id = record.add(ExperimentSpec.model_validate(content))[0].id
        self.drive()

    def drive(self) -> RecordLedger:
        """Start the next driver."""
        claim = self.record.claim(self.id)
        assert claim is not None
        self.ledger = RecordLedger(self.record.url, self.id, claim.generation)
        return self.ledger

    def train(self, number: int, outcome: Any = "completed", value: float = 0.5) -> None:
        self.ledger.open(number, "scornn", {}, CONFIG, f"h{number}")
        attempt = self.ledger.begin(number)
        result = Result(value=value, step=100) if outcome == "completed" else None
        error = "KeyError: 'x'" if outcome == "failed" else None
        self.ledger.finish(number, attempt, outcome, result, error)

    def states(self) -> list[str]:
        return [entry.state for entry in self.ledger.load()]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.record.events(self.id)]


@pytest.fixture
def played(record: Record, spec: Any) -> Played:
    """An experiment of three trials, the second of which failed; it is not over."""
    made = Played(record, spec())
    for number, outcome in enumerate(("completed", "failed", "completed")):
        made.train(number, outcome)
    return made


class TestRetry:
    def test_only_the_failed_trials_are_opened_again(self, client, record, played):
        played.ledger.end("completed")
        played.ledger.set_tracked(None)
        answer = client.post(f"/v1/experiments/{played.id}/retry")
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert answer.json()["finished_at"] is None
        assert not answer.json()["delivered"]
        assert played.states() == ["completed", "waiting", "completed"]
        assert played.kinds()[-2:] == ["trial.reopened", "experiment.reopened"]
        assert record.list_queued(9) == [played.id]
        ledger = played.drive()
        assert (ledger.standing().edition, ledger.standing().is_closed) == (1, False)
        played.ledger.finish(1, played.ledger.begin(1), "completed", Result(value=0.1, step=100))
        assert record.experiment(played.id).best.trial.number == 1
        assert ledger.end("completed") == "completed"

    def test_a_driver_that_still_delivers_may_write_no_more(self, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        with pytest.raises(StaleWriteError):
            played.ledger.set_tracked(None)
        assert not record.row(played.id).tracked

    def test_what_was_cancelled_draws_nothing_new_and_ends_as_cancelled_again(self, record, played):
        record.cancel(played.id)
        played.ledger.end("completed")
        record.retry(played.id)
        ledger = played.drive()
        assert ledger.standing().is_closed
        ledger.finish(1, ledger.begin(1), "completed", Result(value=0.1, step=100))
        assert ledger.end("completed") == "cancelled"
        row = record.row(played.id)
        assert (row.state, row.error) == ("cancelled", CLOSED)

    def test_one_that_failed_itself_goes_on_also_without_a_failed_trial(self, record, spec):
        made = Played(record, spec())
        made.ledger.end("failed", "resources: no node has 64 GPUs")
        record.retry(made.id)
        row = record.row(made.id)
        assert (row.state, row.error, row.closed) == ("queued", None, False)

    def test_a_trial_that_is_tried_again_in_vain_is_as_it_was(self, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        record.cancel(played.id)
        entry = played.ledger.load()[1]
        assert (entry.state, entry.error) == ("failed", "KeyError: 'x'")
        assert "trial.kept" in played.kinds()

    def test_one_that_failed_when_it_was_trained_further_may_be_trained_further_again(
        self, record, played
    ):
        played.ledger.reopen(0, CONFIG | {"replicates": 2}, "seed 1 of the race")
        played.ledger.finish(0, played.ledger.begin(0), "failed", None, "OSError: lost")
        played.ledger.end("completed")
        assert played.ledger.load()[0].error is not None
        record.retry(played.id)
        first = played.ledger.load()[0]
        assert (first.state, first.error) == ("completed", None)

    def test_where_nothing_has_failed_it_is_refused_in_words(self, client, record, spec):
        made = Played(record, spec())
        made.train(0)
        made.ledger.end("completed")
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "has no failed trial, so there is nothing to retry" in answer.json()["detail"]
        assert record.row(made.id).state == "completed"

    def test_a_population_is_refused_in_words(self, client, record, spec):
        content = spec(scheduler={"name": "pbt"}, search={"method": "random", "trials": 4})
        content["search"]["space"] = {"optimizer.lr": {"low": 1e-4, "high": 1e-2}}
        made = Played(record, content)
        made.train(0, "failed")
        made.ledger.end("completed")
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "trained as one population" in answer.json()["detail"]

    def test_a_time_limit_that_is_used_up_is_told_and_the_time_between_does_not_count(
        self, client, record, spec
    ):
        made = Played(record, spec(limits={"wall_seconds": 1000}))
        made.train(0, "failed")
        made.ledger.end("completed")

        def move_start(seconds: float) -> None:
            def work(session: Any) -> None:
                session.get_one(Experiment, made.id).started_at -= seconds

            database.write(record.url, work)

        move_start(2000)
        answer = client.post(f"/v1/experiments/{made.id}/retry")
        assert answer.status_code == 409
        assert "has used up its limits.wall_seconds (1000)" in answer.json()["detail"]
        move_start(-1500)
        record.retry(made.id)
        assert 500 <= made.drive().standing().spent_seconds < 1000

    def test_a_stream_goes_on_over_an_end_to_the_next_one(self, client: TestClient, record, played):
        played.ledger.end("completed")
        record.retry(played.id)
        ledger = played.drive()
        ledger.finish(1, ledger.begin(1), "completed", Result(value=0.1, step=100))
        ledger.end("completed")
        text = client.get(f"/v1/experiments/{played.id}/events").text
        kinds = [line.split(": ")[1] for line in text.splitlines() if line.startswith("event: ")]
        assert kinds == played.kinds()
        assert kinds.count("experiment.completed") == 2

    def test_the_page_has_a_button_only_where_it_would_do_something(self, client, record, played):
        def page() -> str:
            return client.get(f"/experiments/{played.id}").text

        assert "Retry failed trials" not in page()
        played.ledger.end("completed")
        assert "Retry failed trials" in page()
        record.retry(played.id)
        assert "Retry failed trials" not in page()

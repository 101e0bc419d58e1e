"""A person stops one trial: who may, when, and what the record says of it."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


@pytest.fixture
def id(record: Record, spec: Any) -> str:
    return record.add(ExperimentSpec.model_validate(spec()))[0].id


@pytest.fixture
def ledger(record: Record, id: str) -> RecordLedger:
    """Its driver's ledger: trial 0 has completed, trial 1 trains."""
    claim = record.claim(id)
    assert claim is not None
    ledger = RecordLedger(record.url, id, claim.generation)
    for number in range(2):
        ledger.open(number, "scornn", {}, CONFIG, f"hash {number}")
        ledger.begin(number)
    ledger.finish(0, 1, "completed", Result(value=0.5, step=100))
    return ledger


def stop(client: TestClient, id: str, number: int) -> Any:
    return client.post(f"/v1/experiments/{id}/trials/{number}/stop")


def test_an_open_trial_is_stopped_and_events_tell_it(client, record, id, ledger):
    for _ in range(2):  # the answer of the first call may be lost
        answer = stop(client, id, 1)
        assert (answer.status_code, answer.json()["state"]) == (202, "running")
    assert ledger.find_stops() == {1}
    ledger.finish(1, 1, "pruned", error="stopped on request")
    assert stop(client, id, 1).json()["error"] == "stopped on request"
    kinds = [event.kind for event in record.events(id)]
    assert kinds.count("trial.stop_requested") == 1
    assert kinds[-1] == "trial.pruned"


def test_what_cannot_be_stopped_is_refused_in_words(client, record, id, ledger):
    answer = stop(client, id, 7)
    assert (answer.status_code, answer.json()["detail"][:10]) == (404, "experiment")
    answer = stop(client, id, 0)
    assert answer.status_code == 409
    assert "trial 0" in answer.json()["detail"]
    assert "is completed, so there is nothing to stop" in answer.json()["detail"]
    record.pause(id)
    answer = stop(client, id, 1)
    assert answer.status_code == 409
    assert "is pausing: its trials are stopped one by one only while it runs" in answer.text
    assert ledger.find_stops() == frozenset()


def test_a_trial_that_trains_on_keeps_its_result(client, id, ledger):
    ledger.reopen(0, {**CONFIG, "replicates": 2}, "seed 1 of the race")
    answer = stop(client, id, 0)
    assert answer.status_code == 409
    assert "has a result already and trains further (seed 1 of the race)" in answer.text


def test_a_failed_trial_that_is_tried_again_may_be_stopped(client, record, id, ledger):
    ledger.finish(1, 1, "failed", error="a bug")
    ledger.end("completed")
    record.retry(id)
    assert stop(client, id, 1).status_code == 409, "its experiment is queued"
    claim = record.claim(id)
    again = RecordLedger(record.url, id, claim.generation)
    again.begin(1)
    assert stop(client, id, 1).status_code == 202
    again.finish(1, 2, "pruned", error="stopped on request")
    entry: TrialEntry = again.load()[1]
    assert (entry.state, entry.error) == ("pruned", "stopped on request")


def test_what_was_asked_before_an_extension_is_forgotten(client, record, id, ledger, spec):
    assert stop(client, id, 1).status_code == 202
    ledger.finish(1, 1, "failed", error="a bug")
    ledger.end("completed")
    record.retry(id)
    claim = record.claim(id)
    assert RecordLedger(record.url, id, claim.generation).find_stops() == frozenset()


def test_its_page_has_a_button_while_it_trains(client, record, id, ledger):
    here = f"/experiments/{id}/trials"
    button = f'data-post="/v1{here}/1/stop"'
    assert button in client.get(f"{here}/1").text
    assert "/stop" not in client.get(f"{here}/0").text
    record.pause(id)
    assert button not in client.get(f"{here}/1").text

"""The stream of events: complete, resumable, and over when the experiment or the service is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from starlette.testclient import TestClient

from eigensweep.service.api.app import create_app
from eigensweep.service.record.ledger import RecordLedger

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


@pytest.fixture
def ledger(client: TestClient, record: Any, spec: Any) -> RecordLedger:
    id = client.post("/v1/experiments", json=spec()).json()["id"]
    claim = record.claim(id)
    return RecordLedger(record.url, id, claim.generation)


def received(client: TestClient, id: str, **headers: str) -> list[dict[str, str]]:
    """Return the events of a stream that ends."""
    text = client.get(f"/v1/experiments/{id}/events", headers=headers).text
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


class TestEvents:
    def test_a_stream_tells_all_from_the_first_to_the_end(self, client, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "h")
        attempt = ledger.begin(0)
        ledger.report(0, attempt, 50, {"loss": 0.5}, {})
        ledger.finish(0, attempt, "completed", {"value": 0.4, "step": 100})
        ledger.end("completed")
        events = received(client, ledger.experiment_id)
        assert [event["event"] for event in events] == [
            "experiment.queued",
            "experiment.started",
            "trial.started",
            "trial.report",
            "trial.completed",
            "experiment.completed",
        ]
        assert '"step":50' in events[3]["data"].replace(" ", "")
        ids = [int(event["id"]) for event in events]
        assert ids == sorted(set(ids))

    def test_it_resumes_after_the_last_event_that_was_seen(self, client, ledger):
        ledger.end("completed")
        events = received(client, ledger.experiment_id)
        rest = received(client, ledger.experiment_id, **{"Last-Event-ID": events[0]["id"]})
        assert rest == events[1:]
        assert received(client, ledger.experiment_id, **{"Last-Event-ID": events[-1]["id"]}) == []

    def test_what_happens_while_it_is_open_comes_within_a_second(self, client, ledger):
        timer = threading.Timer(0.8, ledger.end, ["cancelled"])
        began = time.monotonic()
        timer.start()
        events = received(client, ledger.experiment_id)
        assert events[-1]["event"] == "experiment.cancelled"
        assert 0.7 < time.monotonic() - began < 3

    def test_it_ends_with_the_service(self, settings, record, dispatcher, ledger):
        app = create_app(settings, record, dispatcher)
        with TestClient(app) as client:
            threading.Timer(2, app.state.service.tailer.closing.set).start()
            began = time.monotonic()
            events = received(client, ledger.experiment_id)
        assert [event["event"] for event in events] == ["experiment.queued", "experiment.started"]
        assert 1.9 < time.monotonic() - began < 6

    def test_one_who_comes_back_with_nonsense_is_told(self, client, ledger):
        headers = {"Last-Event-ID": "x"}
        answer = client.get(f"/v1/experiments/{ledger.experiment_id}/events", headers=headers)
        assert answer.status_code == 422
        assert "event" in answer.json()["errors"][0]["path"]

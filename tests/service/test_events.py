"""The stream of events: complete, resumable, and over when the experiment or the service is."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import pytest
from starlette.testclient import TestClient

from eigensweep.results.trial_result import Result
from eigensweep.service.api.answers import tailer
from eigensweep.service.api.app import create_app
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.users.accounts import Accounts

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}


@pytest.fixture
def ledger(client: TestClient, record: Any, spec: Any) -> RecordLedger:
    id = client.post("/v1/experiments", json=spec()).json()["id"]
    claim = record.claim(id)
    return RecordLedger(record.url, id, claim.generation)


def receive(client: TestClient, id: str, **headers: str) -> list[dict[str, str]]:
    """Return the events of a stream that ends."""
    return split(client.get(f"/v1/experiments/{id}/events", headers=headers).text)


def split(text: str) -> list[dict[str, str]]:
    """Return the events of a stream's text."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    return [dict(line.split(": ", 1) for line in block.splitlines()) for block in blocks]


def count_calls(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[tuple[Any, ...]]:
    """Return the list to which the arguments of each call of a function are added."""
    found, calls = getattr(place, name), []

    def call(*arguments: Any) -> Any:
        calls.append(arguments)
        return found(*arguments)

    monkeypatch.setattr(place, name, call)
    return calls


def after_first_look(record: Any, monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Let a stream read the record once, and `act` before it reads again."""
    read, looks = record.events, []

    def read_and_act(*arguments: Any) -> Any:
        found = read(*arguments)
        looks.append(len(found))
        if len(looks) == 1:
            act()
        return found

    monkeypatch.setattr(record, "events", read_and_act)


class TestEvents:
    def test_a_stream_tells_all_from_the_first_to_the_end(self, client, ledger):
        ledger.open(0, "scornn", {}, CONFIG, "h")
        attempt = ledger.begin(0)
        ledger.report(0, attempt, 50, {"loss": 0.5}, None)
        ledger.finish(0, attempt, "completed", Result(value=0.4, step=100))
        ledger.end("completed")
        events = receive(client, ledger.experiment_id)
        assert [event["event"] for event in events] == [
            "experiment.queued",
            "experiment.started",
            "experiment.running",
            "trial.started",
            "trial.report",
            "trial.completed",
            "experiment.completed",
        ]
        assert '"step":50' in events[4]["data"].replace(" ", "")
        ids = [int(event["id"]) for event in events]
        assert ids == sorted(set(ids))

    def test_it_resumes_after_the_last_event_that_was_seen(self, client, ledger):
        ledger.end("completed")
        events = receive(client, ledger.experiment_id)
        rest = receive(client, ledger.experiment_id, **{"Last-Event-ID": events[0]["id"]})
        assert rest == events[1:]
        assert receive(client, ledger.experiment_id, **{"Last-Event-ID": events[-1]["id"]}) == []

    def test_what_happens_while_it_is_open_comes_too(self, client, record, ledger, monkeypatch):
        after_first_look(record, monkeypatch, lambda: ledger.end("cancelled"))
        events = receive(client, ledger.experiment_id)
        kinds = [event["event"] for event in events]
        assert kinds == ["experiment.queued", "experiment.started", "experiment.cancelled"]

    def test_it_ends_with_the_service(self, settings, record, dispatcher, ledger, monkeypatch):
        app = create_app(settings, record, dispatcher)
        after_first_look(record, monkeypatch, app.state.service.tailer.closing.set)
        with TestClient(app) as client:
            events = receive(client, ledger.experiment_id)
        assert [event["event"] for event in events] == ["experiment.queued", "experiment.started"]

    def test_it_ends_when_the_token_is_revoked(self, client, record, ledger, monkeypatch):
        monkeypatch.setattr(tailer, "LONGEST_TRUST", 0.0)
        accounts = Accounts(record.url)
        token = accounts.create_token("anna", "read", None)
        after_first_look(record, monkeypatch, lambda: accounts.revoke_token(token.id))
        bearer = {"Authorization": f"Bearer {token.token}"}
        events = receive(client, ledger.experiment_id, **bearer)
        assert [event["event"] for event in events] == ["experiment.queued", "experiment.started"]
        place = f"/v1/experiments/{ledger.experiment_id}/events"
        assert client.get(place, headers=bearer).status_code == 401

    def test_it_ends_when_the_token_expires(self, client, record, ledger, monkeypatch):
        monkeypatch.setattr(tailer, "LONGEST_TRUST", 0.0)
        token = Accounts(record.url).create_token("anna", "read", 1.0)
        events = receive(client, ledger.experiment_id, Authorization=f"Bearer {token.token}")
        assert [event["event"] for event in events] == ["experiment.queued", "experiment.started"]
        assert time.time() >= token.expires_at.timestamp()

    def test_it_outlives_many_looks_at_a_token_that_holds(
        self, client, record, ledger, monkeypatch
    ):
        monkeypatch.setattr(tailer, "LONGEST_TRUST", 0.0)
        token = Accounts(record.url).create_token("anna", "read", 60.0)
        after_first_look(record, monkeypatch, lambda: ledger.end("completed"))
        events = receive(client, ledger.experiment_id, Authorization=f"Bearer {token.token}")
        assert events[-1]["event"] == "experiment.completed"

    def test_it_ends_where_the_first_token_is_made(self, client, record, ledger, monkeypatch):
        monkeypatch.setattr(tailer, "LONGEST_TRUST", 0.0)
        make = Accounts(record.url).create_token
        after_first_look(record, monkeypatch, lambda: make("anna", "read", None))
        assert len(receive(client, ledger.experiment_id)) == 2

    def test_what_many_streams_ask_is_read_and_written_once(self, record, ledger, monkeypatch):
        ledger.end("completed")
        looks = count_calls(monkeypatch, record, "events")
        states = count_calls(monkeypatch, record, "state")
        written = count_calls(monkeypatch, tailer, "to_server_sent")
        asked = []

        def is_known(person: int) -> bool:
            asked.append(person)
            return True

        monkeypatch.setattr(tailer, "LONGEST_TRUST", 0.0)
        monkeypatch.setattr(tailer, "INTERVAL", 300.0)
        shared = tailer.Tailer(record)

        async def follow(person: int) -> list[bytes]:
            known = partial(is_known, person)
            caller = "anna" if person < 20 else "bert"
            stream = shared.stream(ledger.experiment_id, 0, caller, known)
            return [piece async for piece in stream]

        async def follow_all() -> list[list[bytes]]:
            return await asyncio.gather(*(follow(person) for person in range(40)))

        pieces = asyncio.run(follow_all())
        assert [len(mine) for mine in pieces] == [1] * 40, "events were not sent in one piece"
        assert {piece for mine in pieces for piece in mine} == {pieces[0][0]}
        kinds = [event["event"] for event in split(pieces[0][0].decode())]
        assert kinds == ["experiment.queued", "experiment.started", "experiment.completed"]
        assert len(looks) == 2  # what there is, and that there is no more
        assert len(written) == 3  # each event
        assert len(states) == 2  # before the events, and after the last one
        assert len(asked) == 2  # for each caller once

    def test_an_end_after_a_shared_look_at_the_state_is_told(self, record, ledger, monkeypatch):
        read, looks = record.state, []

        def look_and_end(id: str) -> str:
            looks.append(read(id))
            if len(looks) == 1:
                ledger.end("completed")
            return looks[-1]

        monkeypatch.setattr(record, "state", look_and_end)
        shared = tailer.Tailer(record)

        async def follow() -> bytes:
            stream = shared.stream(ledger.experiment_id, 0, "anna", lambda: True)
            return b"".join([piece async for piece in stream])

        async def follow_both() -> list[bytes]:
            return await asyncio.gather(follow(), follow())

        for text in asyncio.run(follow_both()):
            assert split(text.decode())[-1]["event"] == "experiment.completed"
        assert looks == ["starting", "completed"]

    def test_it_ends_when_an_experiment_that_is_deleted_is_gone(self, record, ledger, monkeypatch):
        monkeypatch.setattr(tailer, "INTERVAL", 0.01)
        monkeypatch.setattr(tailer, "LONGEST_QUIET", 0.05)
        ledger.end("completed")
        ledger.set_tracked()
        record.delete(ledger.experiment_id)

        async def follow() -> int:
            found = tailer.Tailer(record)
            stream = found.stream(ledger.experiment_id, 0, "anna", lambda: True)
            seen = 0
            async for _ in stream:
                seen += 1
            return seen

        async def follow_until_it_is_gone() -> int:
            following = asyncio.ensure_future(follow())
            await asyncio.sleep(0.5)
            assert not following.done()
            await asyncio.to_thread(record.remove, ledger.experiment_id)
            return await asyncio.wait_for(following, 20)

        assert asyncio.run(follow_until_it_is_gone()) > 0

    def test_a_quiet_connection_is_kept_open_by_comments(self, record, ledger, monkeypatch):
        monkeypatch.setattr(tailer, "LONGEST_SILENCE", 0.0)
        shared = tailer.Tailer(record)

        async def follow() -> list[bytes]:
            stream = shared.stream(ledger.experiment_id, 0, "anna", lambda: True)
            pieces = [await anext(stream) for _ in range(3)]
            await stream.aclose()
            return pieces

        comment, events, following = asyncio.run(follow())
        assert comment == following == b": ping\n\n"
        assert len(split(events.decode())) == 2

    def test_many_events_come_in_several_pieces_and_none_is_missing(
        self, client, record, ledger, monkeypatch
    ):
        monkeypatch.setattr(tailer, "PIECE", 2)
        looks = count_calls(monkeypatch, record, "events")
        ledger.end("completed")
        events = receive(client, ledger.experiment_id)
        assert [int(event["id"]) for event in events] == [
            event.id for event in record.events(ledger.experiment_id)
        ]
        assert looks[0][1:] == (0, 2)
        assert looks[1][1:] == (int(events[1]["id"]), 2)

    def test_a_stream_is_not_kept_back_nor_made_for_no_experiment(self, client, ledger):
        ledger.end("completed")
        answer = client.get(f"/v1/experiments/{ledger.experiment_id}/events")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert client.get("/v1/experiments/nothing/events").status_code == 404

    def test_one_who_comes_back_with_nonsense_is_told(self, client, ledger):
        headers = {"Last-Event-ID": "x"}
        answer = client.get(f"/v1/experiments/{ledger.experiment_id}/events", headers=headers)
        assert answer.status_code == 422
        assert "event" in answer.json()["errors"][0]["path"]

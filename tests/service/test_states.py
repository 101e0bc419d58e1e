"""The states of experiments and trials: the table is walked, and nothing else is possible."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from eigensweep.models import MODELS
from eigensweep.protocol.ledger import PAUSED, StaleWriteError
from eigensweep.protocol.messages import Notice
from eigensweep.protocol.states import (
    ACTIONS,
    DONE,
    ENDED,
    EXPERIMENT_MOVES,
    EXPERIMENT_STATES,
    TRIAL_MOVES,
    TRIAL_STATES,
    intent_of,
    name_actions,
)
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.errors import ConflictError
from eigensweep.service.record.journal import end_experiment, move_experiment, move_trial
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow

CONFIG: dict[str, Any] = {"training": {"steps": 100}, "seed": 0, "replicates": 1}

BODIES: dict[str, Any] = {"delete": {"confirm": True}, "prioritize": {"priority": 7}}
"""What an action needs beside the address."""
UNMOVED = ("archive", "unarchive", "deliver", "prioritize")
"""Actions that leave the state as it is."""

ROUTES: dict[str, list[str]] = {
    "queued": [],
    "starting": ["starting"],
    "waiting_for_room": ["starting", "waiting_for_room"],
    "running": ["starting", "running"],
    "pausing": ["starting", "running", "pausing"],
    "paused": ["starting", "running", "pausing", "paused"],
    "cancelling": ["starting", "running", "cancelling"],
    "completed": ["starting", "running", "completed"],
    "cancelled": ["starting", "running", "cancelling", "cancelled"],
    "failed": ["starting", "running", "failed"],
    "deleting": ["starting", "running", "completed", "deleting"],
}
"""State to the moves that lead there."""


def bring(record: Record, id: str, *states: str) -> None:
    """Bring an experiment through states, each in a transaction of its own."""
    for state in states:

        def work(session: RowSession, state: str = state) -> None:
            experiment = session.get_one(ExperimentRow, id)
            if state in ENDED:
                end_experiment(session, experiment, state, None)  # type: ignore[arg-type]
            else:
                move_experiment(session, experiment, state)  # type: ignore[arg-type]

        database.write(record.url, work)


def add_failed_trial(record: Record, id: str) -> None:
    """Give an experiment a trial that failed, without a driver."""
    trial = TrialRow(experiment_id=id, number=0, arm="scornn", params={}, config=CONFIG)
    trial.state, trial.steps = "failed", 100
    database.write(record.url, lambda session: session.add(trial))


@pytest.fixture
def id(record: Record, spec: Any) -> str:
    return record.add(ExperimentSpec.model_validate(spec()))[0].id


class TestTable:
    @pytest.mark.parametrize("state", EXPERIMENT_STATES)
    def test_an_experiment_may_move_only_as_the_table_says(self, state):
        for following in EXPERIMENT_STATES:
            experiment = ExperimentRow(id="e1", state=state)
            with Session() as session:
                if kind := EXPERIMENT_MOVES[state].get(following):
                    move_experiment(session, experiment, following)
                    (event,) = session.new
                    assert (experiment.state, event.kind) == (following, f"experiment.{kind}")
                    session.expunge_all()
                    continue
                with pytest.raises(ConflictError, match=f"is {state} cannot become {following}"):
                    move_experiment(session, experiment, following)
                assert experiment.state == state
                assert not session.new

    @pytest.mark.parametrize("state", TRIAL_STATES)
    def test_a_trial_may_move_as_the_table_says_and_in_no_other_way(self, state):
        for following in TRIAL_STATES:
            trial = TrialRow(state=state)
            if kind := TRIAL_MOVES[state].get(following):
                assert (move_trial(trial, following), trial.state) == (kind, following)
                continue
            with pytest.raises(ConflictError, match=f"is {state} cannot become {following}"):
                move_trial(trial, following)
            assert trial.state == state

    def test_every_state_is_reached_by_moves_of_the_table(self):
        assert set(ROUTES) == set(EXPERIMENT_STATES) == set(EXPERIMENT_MOVES)
        for moves in ROUTES.values():
            for state, following in zip(["queued", *moves], moves, strict=False):
                assert following in EXPERIMENT_MOVES[state]


@pytest.mark.parametrize("state", EXPERIMENT_STATES)
@pytest.mark.quick_cases(3)
def test_each_state_allows_the_actions_of_the_table_alone(
    client: TestClient, record: Record, spec: Any, state: str
) -> None:
    for action in ACTIONS:
        id = record.add(ExperimentSpec.model_validate(spec()))[0].id
        add_failed_trial(record, id)
        bring(record, id, *ROUTES[state])
        events = len(record.events(id))
        body = BODIES.get(action)
        if action == "extend":
            body = spec(limits={"wall_seconds": 1000})
        answer = client.post(f"/v1/experiments/{id}/{action}", json=body)
        if state in ACTIONS[action]:
            assert answer.status_code == 202
            now = answer.json()["state"]
            assert (now == state) == (action in UNMOVED)
            assert (len(record.events(id)) > events) == (action not in ("unarchive", "deliver"))
        elif state in DONE.get(action, ()):
            assert (answer.status_code, answer.json()["state"]) == (202, state)
            assert len(record.events(id)) == events
        else:
            assert answer.status_code == 409
            words = answer.json()["detail"]
            assert f"is {state.replace('_', ' ')}" in words
            assert words.endswith(f"what works now: {name_actions(state)}")
            assert record.row(id).state == state


def test_the_page_shows_the_moves_of_the_table():
    page = (Path(__file__).parents[2] / "docs/how-to/control.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page, re.MULTILINE))
    for state, moves in EXPERIMENT_MOVES.items():
        if state in ENDED:
            continue
        told = set(re.findall(r"`(\w+)`", rows[state]))
        told |= ENDED if "an end" in rows[state] else set()
        assert told == set(moves), state


class TestPause:
    def test_what_waits_is_paused_at_once_and_passed_over(self, record, id):
        record.pause(id)
        assert (record.row(id).state, record.list_queued(9)) == ("paused", [])
        assert record.claim(id) is None
        record.resume(id)
        assert record.list_queued(9) == [id]

    @pytest.fixture
    def ledger(self, record: Record, id: str) -> RecordLedger:
        claim = record.claim(id)
        assert claim is not None
        ledger = RecordLedger(record.url, id, claim.generation)
        ledger.open(0, "scornn", {}, CONFIG, "abc")
        ledger.begin(0)
        return ledger

    def test_its_driver_is_asked_and_says_when_the_trials_have_left(self, record, id, ledger):
        assert (record.row(id).state, ledger.intent()) == ("running", "run")
        record.pause(id)
        assert (record.row(id).state, ledger.intent()) == ("pausing", "pause")
        ledger.report(0, 1, 10, {"objective": 0.5}, None)
        assert ledger.pause()
        assert ledger.pause()  # the answer of the first call may be lost
        (entry,) = ledger.load()
        assert (entry.state, entry.attempt, list(entry.reports)) == ("waiting", 1, [10])
        kinds = [event.kind for event in record.events(id)][-4:]
        assert kinds == [
            "experiment.pause_requested",
            "trial.report",
            "trial.interrupted",
            "experiment.paused",
        ]

    def test_a_drivers_own_reason_stays_until_the_resume(self, record, id, ledger, client):
        failing = Notice("failures", "paused, because 30 trials in a row have failed")
        ledger.record_notices([failing, Notice("node", "a node is left out", "node7")])
        for _ in range(2):  # the answer of the first call may be lost
            ledger.request_pause("trials fail one after another")
        assert (record.row(id).state, ledger.intent()) == ("pausing", "pause")
        assert ledger.pause()
        shown = client.get(f"/v1/experiments/{id}").json()
        assert [each["words"] for each in shown["notices"]] == [failing.words]
        assert failing.words in client.get(f"/experiments/{id}").text
        (wait,) = client.get("/v1/cluster").json()["waiting"]
        assert wait["why"] == failing.words
        record.resume(id)
        assert client.get(f"/v1/experiments/{id}").json()["notices"] == []

    def test_another_driver_finishes_the_pause_of_a_dead_service(self, record, id, ledger):
        record.pause(id)
        assert [each.id for each in record.list_unfinished()] == [id]
        claim = record.claim(id)
        assert claim is not None
        again = RecordLedger(record.url, id, claim.generation)
        assert again.intent() == "pause"
        with pytest.raises(StaleWriteError):
            ledger.pause()
        assert again.pause()
        assert record.list_unfinished() == []

    def test_trials_of_a_driver_that_died_pausing_go_on_later(self, record, id, ledger):
        ledger.open(1, "lstm", {}, CONFIG, "def")
        ledger.begin(1)
        record.pause(id)
        ledger.interrupt(0, 1, PAUSED)
        record.count_death(id)  # the driver dies: trial 1 still stands as running
        claim = record.claim(id)
        assert claim is not None
        assert RecordLedger(record.url, id, claim.generation).pause()
        assert record.row(id).state == "paused"
        record.resume(id)
        resumed = record.claim(id)
        assert resumed is not None
        entries = RecordLedger(record.url, id, resumed.generation).load()
        assert [(entry.state, entry.attempt) for entry in entries] == [("waiting", 1)] * 2
        reasons = [record.trial(id, number).attempts[0].reason for number in (0, 1)]
        assert reasons == [PAUSED, PAUSED]

    def test_the_time_of_a_pause_does_not_count(self, record, id, ledger):
        record.pause(id)
        ledger.pause()
        left = record.row(id).left_at
        assert left is not None
        record.resume(id)
        assert record.claim(id) is not None
        assert record.row(id).left_at is None
        assert record.row(id).idle_seconds > 0

    def test_a_cancelled_pause_gets_a_driver_for_mlflow(self, record, id, ledger):
        record.pause(id)
        ledger.pause()
        record.cancel(id)
        assert record.row(id).state == "cancelled"
        assert ledger.load()[0].state == "cancelled"
        assert [(each.id, each.is_over) for each in record.list_unfinished()] == [(id, True)]

    def test_a_cancellation_in_the_middle_of_a_pause_wins(self, record, id, ledger):
        record.pause(id)
        record.cancel(id)
        assert ledger.intent() == "cancel"
        assert not ledger.pause()
        assert ledger.end("completed")[0] == "cancelled"


def test_a_driver_without_room_says_so_until_its_first_trial(record, id):
    claim = record.claim(id)
    assert claim is not None
    ledger = RecordLedger(record.url, id, claim.generation)
    ledger.record_phase("waiting_for_room")
    assert record.row(id).state == "waiting_for_room"
    ledger.record_phase("starting")
    ledger.open(0, "scornn", {}, CONFIG, "abc")
    ledger.begin(0)
    assert record.row(id).state == "running"
    record.cancel(id)
    ledger.record_phase("waiting_for_room")
    assert record.row(id).state == "cancelling"


def test_a_paused_experiment_is_driven_only_when_resumed(
    dispatcher: Any, launcher: Any, record: Record, id: str
) -> None:
    dispatcher.tick()
    record.pause(id)
    dispatcher.tick()
    launcher.launched[0].ledger.pause()
    launcher.launched[0].now = "ended"
    for _ in range(3):
        dispatcher.tick()
    assert len(launcher.launched) == 1
    assert record.row(id).deaths == 0
    record.resume(id)
    dispatcher.tick()
    assert len(launcher.launched) == 2
    assert record.row(id).state == "starting"


def test_several_are_acted_on_at_once_whatever_is_refused(
    client: TestClient, record: Record, spec: Any
) -> None:
    parsed = ExperimentSpec.model_validate(spec())
    queued, running, over = (record.add(parsed)[0].id for _ in range(3))
    bring(record, running, *ROUTES["running"])
    bring(record, over, *ROUTES["completed"])
    unknown = ("nobody", "n" * 33, "")
    body = {"action": "pause", "ids": [queued, running, over, *unknown, queued]}
    answer = client.post("/v1/experiments/bulk", json=body)
    assert answer.status_code == 200
    items = {item["id"]: item for item in answer.json()["items"]}
    assert {id: item["state"] for id, item in items.items()} == {
        queued: "paused",
        running: "pausing",
        over: "completed",
        **dict.fromkeys(unknown),
    }
    assert all(f"no experiment '{id}'" in items[id]["problem"] for id in unknown)
    assert [id for id, item in items.items() if item["problem"] is None] == [queued, running]
    assert "is completed" in items[over]["problem"]
    assert client.post("/v1/experiments/bulk", json={**body, "ids": []}).status_code == 422


def test_a_model_that_was_removed_is_told_and_others_go_on(
    client: TestClient, record: Record, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [record.add(ExperimentSpec.model_validate(spec()))[0].id for _ in range(3)]
    for id in ids:
        bring(record, id, *ROUTES["failed"])
    removed = {**record.row(ids[1]).spec, "model": {"name": "lab_rnn"}}
    change = update(ExperimentRow).where(ExperimentRow.id == ids[1]).values(spec=removed)
    database.write(record.url, lambda rows: rows.execute(change))
    body = {"action": "retry", "ids": ids}
    items = client.post("/v1/experiments/bulk", json=body).json()["items"]
    assert [item["state"] for item in items] == ["queued", "failed", "queued"]
    why = "not installed here: its model 'lab_rnn'; install the package that brought it"
    assert items[1]["problem"] == why
    monkeypatch.setitem(MODELS._problems, "lab:RNN of lab", ("lab_rnn", "SyntaxError: line 165"))
    (item,) = client.post("/v1/experiments/bulk", json={**body, "ids": ids[1:2]}).json()["items"]
    assert "'lab_rnn' (lab:RNN of lab was left out: SyntaxError: line 165)" in item["problem"]
    monkeypatch.undo()
    for part in ("published", "race", "pareto", "importance", "trials.journal"):
        answer = client.get(f"/v1/experiments/{ids[1]}/{part}")
        assert (answer.status_code, answer.json()["detail"]) == (409, why)
    assert client.get(f"/experiments/{ids[1]}").status_code == 200


def test_a_page_shows_a_task_that_has_lost_a_field(client, record, spec):
    posted = record.add(ExperimentSpec.model_validate(spec()))[0]
    older = {**posted.spec, "task": {**posted.spec["task"], "lost": 1}}
    change = update(ExperimentRow).where(ExperimentRow.id == posted.id).values(spec=older)
    database.write(record.url, lambda rows: rows.execute(change))
    assert client.get(f"/experiments/{posted.id}").status_code == 200


def test_what_is_gone_meanwhile_leaves_others_of_a_bulk_be(
    client: TestClient, record: Record, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (record.add(ExperimentSpec.model_validate(spec()))[0].id for _ in range(2))
    bring(record, first, *ROUTES["completed"])

    def delete_at_once(id: str) -> None:
        Record.delete(record, id)
        record.remove(id)

    monkeypatch.setattr(record, "delete", delete_at_once)
    body = {"action": "delete", "ids": [first, second], "confirm": True}
    answer = client.post("/v1/experiments/bulk", json=body)
    assert answer.status_code == 200
    gone, queued = answer.json()["items"]
    assert gone == {"id": first, "state": None, "problem": None}
    assert (queued["state"], "is queued" in queued["problem"]) == ("queued", True)


def test_a_bulk_tells_what_was_done_before_the_database_left(
    client: TestClient, record: Record, spec: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [record.add(ExperimentSpec.model_validate(spec()))[0].id for _ in range(3)]
    away = OperationalError("", {}, sqlite3.OperationalError("database is locked"))
    cancels = iter([Record.cancel, Mock(side_effect=away)])
    monkeypatch.setattr(record, "cancel", lambda id: next(cancels)(record, id))
    answer = client.post("/v1/experiments/bulk", json={"action": "cancel", "ids": ids})
    first, *others = answer.json()["items"]
    assert (answer.status_code, first["state"], first["problem"]) == (200, "cancelled", None)
    words = "the database of the record does not answer"
    assert {(each["state"], each["problem"]) for each in others} == {(None, words)}
    (entry,) = (
        each for each in client.get("/v1/audit").json()["items"] if "bulk" in each["action"]
    )
    assert ids[0] in entry["detail"]
    assert ids[1] not in entry["detail"]
    monkeypatch.setattr(record, "cancel", Mock(side_effect=away))
    assert (
        client.post("/v1/experiments/bulk", json={"action": "cancel", "ids": ids}).status_code
        == 503
    )


def test_what_a_person_wants_follows_from_the_state():
    wants = {state: intent_of(state) for state in EXPERIMENT_STATES}
    assert {state for state in wants if wants[state] == "pause"} == {"pausing", "paused"}
    assert {state for state in wants if wants[state] == "cancel"} == {"cancelling", "cancelled"}

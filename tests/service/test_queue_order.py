"""The order of the queue, and how people change it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.record import Record


@pytest.fixture
def post(record: Record, spec: Any) -> Callable[..., str]:
    """Return a function that queues an experiment of a user and gives its id."""

    def add(owner: str, priority: int = 0) -> str:
        parsed = ExperimentSpec.model_validate(spec(priority=priority))
        return record.add(parsed, owner=owner)[0].id

    return add


class TestTheQueue:
    def test_users_take_turns_and_those_that_run_count(self, post, record):
        a = [post("anna") for _ in range(4)]
        b = [post("ben") for _ in range(2)]
        assert record.list_queued(9) == [a[0], b[0], a[1], b[1], a[2], a[3]]
        record.claim(a[0])
        assert record.list_queued(9) == [b[0], a[1], b[1], a[2], a[3]]
        assert record.list_queued(2) == [b[0], a[1]]

    def test_a_priority_comes_before_turns_not_before_who_has_none(self, post, record):
        a = [post("anna") for _ in range(2)]
        urgent = [post("anna", 5) for _ in range(2)]
        late, b = post("ben", -5), post("ben")
        assert record.list_queued(9) == [urgent[0], b, urgent[1], *a, late]
        assert record.list_newcomers(9) == [urgent[0], b]
        record.claim(b)
        assert record.list_queued(9) == [urgent[0], urgent[1], *a, late]
        assert record.list_newcomers(9) == [urgent[0]]
        record.claim(urgent[0])
        assert record.list_newcomers(9) == []
        record.prioritize(late, 6)
        assert record.list_queued(9)[0] == late
        kinds = [(event.kind, event.data.get("priority")) for event in record.events(late)]
        assert kinds[-1] == ("experiment.prioritized", 6)

    def test_the_place_is_shown_in_the_api_until_it_starts(self, client, post, record):
        ids = [post("anna"), post("anna", 3)]
        listed = client.get("/v1/experiments").json()["items"]
        places = {each["id"]: each["queue_place"] for each in listed}
        assert places == {ids[0]: 2, ids[1]: 1}
        assert client.get(f"/v1/experiments/{ids[0]}").json()["queue_place"] == 2
        record.claim(ids[0])
        assert client.get(f"/v1/experiments/{ids[0]}").json()["queue_place"] is None

    def test_another_priority_is_answered_a_wrong_one_refused(self, client, post):
        id = post("anna")
        answer = client.post(f"/v1/experiments/{id}/prioritize", json={"priority": -3})
        assert (answer.status_code, answer.json()["priority"]) == (202, -3)
        for wrong in (1001, "7", 1.5, None):
            answer = client.post(f"/v1/experiments/{id}/prioritize", json={"priority": wrong})
            assert answer.status_code == 422, wrong

    def test_an_extension_with_another_priority_has_it(self, post, record, spec):
        id = post("anna")
        record.prioritize(id, 4)
        record.give_up(id, "the test says so")
        more = ExperimentSpec.model_validate(spec(limits={"wall_seconds": 1000}))
        record.extend(id, more)
        assert record.row(id).priority == 4
        record.give_up(id, "the test says so")
        record.extend(id, more.model_copy(update={"priority": 2}))
        assert record.row(id).priority == 2


class TestAPlaceThatIsCounted:
    """A post counts its place; lists put the whole queue in order."""

    @pytest.fixture
    def record(self, each_url):
        return Record(each_url)

    def test_it_is_that_of_the_whole_order(self, post, record):
        chance = random.Random(3)
        people, priorities = ("anna", "ben", "cleo"), (0, 0, 0, 5, -5)
        ids = [post(chance.choice(people), chance.choice(priorities)) for _ in range(40)]
        ids += [post(owner, chance.choice(priorities)) for owner in ("dora", "emil", "dora")]
        driven, paused = ids[:40:8], ids[1]
        for id in driven:
            record.claim(id)
        record.pause(paused)
        order = record.list_queued(len(ids))
        assert sorted(order) == sorted({*ids} - {*driven, paused})
        assert find_posted_places(record, order) == list(range(1, len(order) + 1))
        assert [record.experiment(id).place for id in order] == list(range(1, len(order) + 1))
        assert find_posted_places(record, [*driven, paused]) == [None] * 6

    def test_of_two_that_came_at_one_moment_the_ids_decide(self, post, record, monkeypatch):
        with monkeypatch.context() as stopped:
            stopped.setattr(time, "time", lambda: 1e9)
            ids = [post(owner) for owner in ("anna", "ben", "anna", "ben", "cleo")]
        order = record.list_queued(9)
        assert sorted(order) == sorted(ids)
        assert find_posted_places(record, order) == [1, 2, 3, 4, 5]


def find_posted_places(record: Record, ids: list[str]) -> list[int | None]:
    return [record.posted(record.row(id)).place for id in ids]

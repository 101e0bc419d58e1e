"""Many posts at once: what the service does so that none of them waits for long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError
from waiting import PATIENCE, wait_until

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers import shared_answers
from eigensweep.service.api.answers.shared_answers import SingleFlight
from eigensweep.service.record.errors import IdempotencyKeyReusedError, QuotaExceededError
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import EventRow
from eigensweep.service.record.users.accounts import Accounts, Quotas


@contextmanager
def posts_at_once(record: Record, number: int) -> Iterator[Callable[..., Future[Any]]]:
    """Yield a function that posts in a thread; all posts wait until there are so many.

    Until then another write is under way. Leave it with all posts answered.
    """
    under_way, go_on = threading.Event(), threading.Event()

    def hold(_: object) -> None:
        under_way.set()
        assert go_on.wait(PATIENCE)

    with ThreadPoolExecutor(number + 1) as pool:
        held = pool.submit(record.posts.write, hold)
        try:
            assert under_way.wait(PATIENCE)
            yield lambda *given, **named: pool.submit(record.add, *given, **named)
            wait_until(lambda: len(record.posts._waiting) == number)
        finally:
            go_on.set()
        held.result()


@pytest.fixture
def commits(url) -> list[object]:
    """Each commit of this process to the record."""
    seen: list[object] = []
    event.listen(database.engine(url), "commit", seen.append)
    return seen


@pytest.fixture
def posted(spec) -> ExperimentSpec:
    return ExperimentSpec(**spec())


class TestPostsThatWait:
    def test_are_one_commit_with_their_events_and_entries(self, record, posted, commits):
        with posts_at_once(record, 6) as post:
            del commits[:]
            answers = [
                post(
                    posted,
                    notify=["https://a.example"],
                    beside=lambda rows, id: rows.add(
                        EventRow(experiment_id=id, kind="beside", data={}, at=0.0)
                    ),
                )
                for _ in range(6)
            ]
        assert len(commits) == 2  # one is of the write before them
        ids = [answer.result()[0].id for answer in answers]
        assert sorted(record.list_queued(9)) == sorted(ids)
        kinds = {tuple(event.kind for event in record.events(id)) for id in ids}
        assert kinds == {("experiment.queued", "beside")}

    def test_are_on_the_disk_before_they_are_answered(self, record, posted):
        modes: list[Any] = []

        def look(rows: Any, _: str) -> None:
            modes.append(rows.execute(text("PRAGMA synchronous")).scalar())

        with posts_at_once(record, 2) as post:
            answers = [post(posted, beside=look) for _ in range(2)]
        assert all(answer.result()[1] for answer in answers)
        assert modes == [2, 2]  # FULL

    def test_see_each_other(self, record, posted):
        with posts_at_once(record, 3) as post:
            answers = [post(posted, "key") for _ in range(3)]
        found = [answer.result() for answer in answers]
        assert len({experiment.id for experiment, _ in found}) == 1
        assert sorted(is_new for _, is_new in found) == [False, False, True]

    def test_are_refused_one_by_one(self, record, posted, url):
        Accounts(url).create_user("anna", Quotas(max_experiments=1))
        record.add(posted, "key")
        other = posted.model_copy(update={"name": "another"})
        with posts_at_once(record, 5) as post:
            hers = [post(posted, owner="anna") for _ in range(2)]
            same_key = post(other, "key")
            fine = [post(posted) for _ in range(2)]
        assert isinstance(same_key.exception(), IdempotencyKeyReusedError)
        refused = [answer.exception() for answer in hers if answer.exception() is not None]
        assert [type(error) for error in refused] == [QuotaExceededError]
        assert all(answer.result()[1] for answer in fine)
        assert len(record.list_queued(9)) == 4

    def test_are_all_told_that_the_database_is_away(self, record, posted, monkeypatch):
        def fail(*_: object) -> None:
            raise OperationalError("BEGIN", None, Exception("disk I/O error"))

        with posts_at_once(record, 3) as post:
            answers = [post(posted) for _ in range(3)]
            wait_until(lambda: len(record.posts._waiting) == 3)
            monkeypatch.setattr(database, "write", fail)
        assert {type(answer.exception()) for answer in answers} == {OperationalError}
        monkeypatch.undo()
        assert record.list_queued(9) == []
        assert record.add(posted)[1]


class TestAnswersForAllWhoWait:
    def test_nobody_gets_one_that_was_begun_before(self):
        begun, go_on, facts = threading.Event(), threading.Event(), ["no token", "a token"]

        def find() -> str:
            begun.set()
            assert go_on.wait(PATIENCE)
            return facts.pop(0)

        async def ask_while_it_is_found() -> list[str]:
            flight = SingleFlight(find)
            first = asyncio.create_task(flight.ask())
            await asyncio.to_thread(begun.wait, PATIENCE)
            others = [asyncio.create_task(flight.ask()) for _ in range(9)]
            await asyncio.sleep(0)  # all of them ask
            go_on.set()
            return await asyncio.gather(first, *others)

        assert asyncio.run(ask_while_it_is_found()) == ["no token", *["a token"] * 9]

    def test_one_look_that_hangs_holds_up_no_later_one(self, monkeypatch):
        monkeypatch.setattr(shared_answers, "PATIENCE_SECONDS", 0.05)
        begun, heal, answers = threading.Event(), threading.Event(), ["late", "at once"]

        def find() -> str:
            answer = answers.pop(0)
            if answer == "late":
                begun.set()
                assert heal.wait(PATIENCE)
            return answer

        async def ask_behind_it() -> list[str]:
            flight = SingleFlight(find)
            first = asyncio.create_task(flight.ask())
            await asyncio.to_thread(begun.wait, PATIENCE)
            later = await flight.ask()
            heal.set()
            return [later, await first]

        assert asyncio.run(ask_behind_it()) == ["at once", "late"]

    def test_an_error_is_for_those_who_wait_and_the_next_ask_anew(self):
        answers: list[Any] = [OSError("away"), "back"]

        def find() -> str:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

        async def ask_twice() -> list[Any]:
            flight = SingleFlight(find)
            at_once = [flight.ask() for _ in range(3)]
            told = await asyncio.gather(*at_once, return_exceptions=True)
            return [*map(str, told), await flight.ask()]

        assert asyncio.run(ask_twice()) == ["away", "away", "away", "back"]

    def test_one_who_goes_away_leaves_it_to_the_others(self):
        async def ask_and_leave() -> str:
            flight = SingleFlight(lambda: "here")
            leaving, staying = (asyncio.create_task(flight.ask()) for _ in range(2))
            await asyncio.sleep(0)
            leaving.cancel()
            return await staying

        assert asyncio.run(ask_and_leave()) == "here"

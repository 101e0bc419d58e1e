"""An engine's process without Ray: who gets a slot, who loses it, and what is answered."""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import ray
from orders import make_order
from ray.exceptions import ActorDiedError, GetTimeoutError

from eigensweep.protocol.code import own_code
from eigensweep.protocol.ledger import StaleWriteError
from eigensweep.protocol.messages import EngineNeed, Order, Report
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.training.lanes.engine.register import EngineError
from eigensweep.workers.processes import engine_actor as module
from eigensweep.workers.processes.engine_actor import EngineActor, EngineSlot, NoSlotError

NEED = EngineNeed(lanes=2, trials=3, cpus=1.0, gpus=0.0)


class ScriptedEngine:
    """Answers each trial's next rung at once, or what a test says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.left: list[tuple[int, int]] = []
        self.committed: list[tuple[int, int]] = []
        self.answer: Any = None
        self.error: str | None = None
        self.in_turn, self.longest_turn = 0.0, 0.0

    def ask(self, order: Order, seconds: float) -> Report | None:
        self.asked.append((order.number, order.reported))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer == "nothing":
            return None
        return Report(order.reported + 5, {"objective": 1.0})

    def leave(self, order: Order, *, commit: bool = False) -> None:
        self.left.append((order.number, order.attempt))
        if commit:
            self.committed.append((order.number, order.attempt))

    def seconds_in_turn(self) -> float:
        return self.in_turn

    def occupancy(self) -> dict[str, float]:
        return {"occupied": 1.0}

    @property
    def is_broken(self) -> bool:
        return self.error is not None


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


@pytest.fixture
def actor(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> EngineActor:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made = EngineActor("cpu", None, NEED, own_code())
    monkeypatch.setattr(made, "_open", lambda: engine)
    return made


def order(number: int, attempt: int = 1, reported: int = 0) -> Order:
    return make_order(number=number, attempt=attempt, reported=reported, engine=NEED)


def test_trials_join_until_all_slots_are_taken(actor, engine):
    async def scene() -> None:
        assert [await actor.join(order(n)) for n in range(5)] == [True] * 3 + [False] * 2
        await actor.leave(order(1))
        assert engine.left == [(1, 1)]
        assert not engine.committed  # nobody wants it any more
        assert await actor.join(order(3))

    asyncio.run(scene())


def test_one_that_nobody_joins_ends(actor, monkeypatch):
    ended: list[int] = []
    monkeypatch.setattr(module.os, "_exit", ended.append)
    actor._end_unless_joined()
    assert ended == [0]

    async def scene() -> None:
        assert await actor.join(order(0))
        actor._end_unless_joined()

    asyncio.run(scene())
    assert ended == [0]
    assert actor._lonely.finished.is_set()


def test_trials_of_other_experiments_count_with_their_own_share(actor):
    half = make_order(number=7, experiment="e2", engine=replace(NEED, trials=2))

    async def scene() -> None:
        assert await actor.join(half)
        assert [await actor.join(order(n)) for n in range(2)] == [True, False]

    asyncio.run(scene())


def test_each_call_gives_the_next_rung_a_lost_one_comes_again(actor, engine):
    async def scene() -> None:
        await actor.join(order(0))
        first = await actor.advance(order(0))
        assert await actor.advance(order(0)) == first
        assert engine.asked == [(0, 0)]
        second = await actor.advance(order(0, reported=5))
        assert (first.step, second.step) == (5, 10)
        assert second.place.lanes == 2
        engine.answer = "nothing"
        assert await actor.advance(order(0, reported=10)) is None

    asyncio.run(scene())


def test_a_process_that_was_cut_off_takes_no_slot(actor, engine):
    async def scene() -> None:
        await actor.join(order(4, attempt=2))
        with pytest.raises(StaleAttemptError):
            await actor.join(order(4))
        assert (await actor.advance(order(4, attempt=2))).step == 5
        assert engine.left == []

    asyncio.run(scene())


def test_who_has_no_slot_is_told_so(actor, engine):
    async def scene() -> None:
        with pytest.raises(NoSlotError, match="trial 4 of e1 has no slot"):
            await actor.advance(order(4))
        await actor.join(order(4))
        await actor.join(order(4, attempt=2))
        assert engine.left == engine.committed == [(4, 1)]  # its successor goes on from there
        with pytest.raises(NoSlotError):
            await actor.advance(order(4))
        await actor.leave(order(4))  # of an attempt that has a successor
        assert await actor.advance(order(4, attempt=2))
        engine.answer = StaleWriteError("it has a successor")
        with pytest.raises(StaleWriteError):
            await actor.advance(order(4, attempt=2, reported=5))

    asyncio.run(scene())


def test_a_trial_whose_process_is_gone_loses_its_seat(actor, engine, monkeypatch):
    monkeypatch.setattr(module, "LEASE_SECONDS", 0.0)

    async def scene() -> None:
        await actor.join(order(0))
        while not engine.left:
            await asyncio.sleep(0.05)
        with pytest.raises(NoSlotError):
            await actor.advance(order(0))

    asyncio.run(scene())
    assert engine.left == engine.committed == [(0, 1)]


def test_a_disk_that_fails_is_told_as_such(actor, engine):
    async def scene() -> None:
        await actor.join(order(0))
        engine.answer = EngineError("the engine could not go on")
        engine.answer.__cause__ = OSError(errno.ENOSPC, "no space left")
        assert (await actor.advance(order(0))).lost_by == "disk"

    asyncio.run(scene())


class Ended(BaseException):
    """Stands for the end of the process."""


@contextmanager
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def end(status: int) -> None:
        raise Ended

    monkeypatch.setattr(module.os, "_exit", end)
    with pytest.raises(Ended):
        yield


def test_it_ends_when_it_has_had_no_trial_for_a_while(actor, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)

    async def scene() -> None:
        await actor.join(order(0))
        await actor.leave(order(0))
        await actor._watch

    with ended(monkeypatch):
        asyncio.run(scene())


def test_one_that_is_long_in_loading_is_not_idle(actor, engine, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.5)

    def load() -> ScriptedEngine:
        time.sleep(2.5)
        return engine

    monkeypatch.setattr(actor, "_open", load)
    monkeypatch.setattr(module.os, "_exit", lambda status: pytest.fail("it ends while it loads"))

    async def scene() -> None:
        assert await actor.join(order(0))
        assert not actor._watch.done()
        actor._watch.cancel()

    asyncio.run(scene())


def test_an_engine_that_cannot_go_on_tells_its_trials_and_ends(actor, engine, monkeypatch):
    async def scene() -> None:
        await actor.join(order(0))
        engine.answer, engine.error = EngineError("the device is lost"), "the device is lost"
        report = await actor.advance(order(0))
        assert (report.lost, report.lost_by) == ("the device is lost", "engine")
        assert not await actor.join(order(1))
        await actor._watch

    with ended(monkeypatch):
        asyncio.run(scene())


def test_an_engine_that_hangs_gives_its_trials_back_and_ends(actor, engine, monkeypatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.0)

    async def scene() -> None:
        patient = make_order(number=1, engine=NEED, stall_seconds=100.0)
        hasty = make_order(number=0, engine=NEED, stall_seconds=5.0)
        assert await actor.join(patient)
        assert await actor.join(hasty)
        engine.answer, engine.in_turn = "nothing", 99.0
        actor._look_for_stall()
        assert await actor.advance(hasty) is None, "the other trial may well be that slow"
        engine.in_turn = 101.0
        actor._look_for_stall()
        for order in (patient, hasty):
            report = await actor.advance(order)
            assert (report.lost_by, report.outcome) == ("engine", None)
            assert "no lane of the engine took a step for 101 s" in report.lost
        assert not await actor.join(make_order(number=2, engine=NEED))
        await actor._watch

    with ended(monkeypatch):
        asyncio.run(scene())


class Remote:
    """A method of an actor, called at once."""

    def __init__(self, act: Any) -> None:
        self.remote = act


class TestSlot:
    """A trial's side of it, with answers that a test wrote down."""

    def slot(
        self, monkeypatch: pytest.MonkeyPatch, *answers: Any, joins: tuple[Any, ...] = ()
    ) -> tuple[EngineSlot, list[Any]]:
        """Return a slot, and a list of what it asks for; `joins` are its first tries to join."""
        told, left, tries = list(answers), [], list(joins)
        asked: list[int] = []

        class Actor:
            join = Remote(lambda order: tries.pop(0) if tries else True)
            advance = Remote(lambda order: (asked.append(order.reported), told.pop(0))[1])
            leave = Remote(left.append)

        def get(answer: Any, timeout: float | None = None) -> Any:
            if isinstance(answer, GetTimeoutError):
                assert timeout is not None, "it would wait for ever"
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(ray, "get", get)
        monkeypatch.setattr(module, "_engines_here", lambda order: [("engine", "cpu", None)])
        monkeypatch.setattr(module, "_find_or_start", lambda *where: Actor)
        slot = EngineSlot(order(0))
        return slot, asked

    def test_it_asks_until_there_is_an_answer_then_for_the_next(self, monkeypatch):
        reports = [Report(5), Report(10)]
        slot, asked = self.slot(monkeypatch, None, reports[0], None, None, reports[1])
        assert [slot.advance().step, slot.advance().step] == [5, 10]
        assert asked == [0, 0, 5, 5, 5]

    def test_it_joins_again_where_it_lost_its_slot(self, monkeypatch):
        slot, asked = self.slot(monkeypatch, NoSlotError(), Report(5))
        assert slot.advance().step == 5
        assert asked == [0, 0]

    def test_the_death_of_the_engine_is_a_report(self, monkeypatch):
        slot, _ = self.slot(monkeypatch, Report(5), ActorDiedError())
        assert slot.advance().lost is None
        lost = slot.advance()
        assert (lost.step, lost.outcome) == (5, None)
        assert "the engine that trained it died" in lost.lost

    def test_an_engine_that_gives_no_answer_is_killed(self, monkeypatch):
        killed: list[Any] = []
        monkeypatch.setattr(ray, "kill", killed.append)
        slot, _ = self.slot(monkeypatch, GetTimeoutError())
        lost = slot.advance()
        assert (lost.lost_by, lost.outcome, len(killed)) == ("engine", None, 1)
        assert "gave no answer" in lost.lost

    def test_an_engine_that_hung_before_a_trial_came_is_replaced(self, monkeypatch):
        killed: list[Any] = []
        monkeypatch.setattr(ray, "kill", killed.append)
        monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
        joins = GetTimeoutError(), True
        slot, _ = self.slot(monkeypatch, Report(5), joins=joins)
        report = slot.advance()
        assert (report.step, report.lost, len(killed)) == (5, None, 1)

"""How often a training commits, on a clock that the tests turn: a second a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from clocks import Clock
from orders import make_order
from toys import Line, Lines, trial

from eigensweep.models import MODELS
from eigensweep.store.checkpoints import Store
from eigensweep.tasks import TASKS
from eigensweep.training import attempt
from eigensweep.training.attempt import Replicate
from eigensweep.training.training import Training


class SlowStore(Store):
    """A store whose commits take a while, of a clock's time."""

    def __init__(self, root: Path, clock: Clock, cost: float) -> None:
        super().__init__(root)
        self.clock, self.cost = clock, cost
        self.steps: list[int] = []

    def commit(self, key: str, attempt: int, step: int, *content: Any) -> None:
        super().commit(key, attempt, step, *content)
        self.clock.now += self.cost
        self.steps.append(step)


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(MODELS, "line", Line)
    monkeypatch.setitem(TASKS, "lines", Lines)
    monkeypatch.setattr(attempt, "GLANCE_SECONDS", 0.0)  # look after every step


def commit_steps(folder: Path, steps: int, cost: float, checkpoint_seconds: float) -> list[int]:
    """Train, a second a step; return the steps at which it committed."""
    clock = Clock()
    store = SlowStore(folder, clock, cost)

    def spend_a_second() -> bool:
        clock.now += 1
        return False

    training = Training(trial(training={"steps": steps, "evaluate_every": 1000}), 0)
    unwanted = spend_a_second  # asked once a step
    order = make_order(storage=str(folder), checkpoint_seconds=checkpoint_seconds)
    replicate = Replicate(training, order, store, unwanted, lambda: False, clock)
    replicate.train(steps)
    return store.steps


class TestCommits:
    def test_those_that_cost_nothing_are_made_often(self, tmp_path):
        assert commit_steps(tmp_path, 9, cost=0, checkpoint_seconds=600) == [2, 4, 6, 8, 9]

    def test_those_that_cost_something_take_their_share_at_most(self, tmp_path):
        cost = 2.0
        apart = int(cost / attempt.COMMIT_SHARE)
        steps = commit_steps(tmp_path, 100, cost=cost, checkpoint_seconds=600)
        assert steps == [2, 2 + apart, 2 + 2 * apart, 100]

    def test_however_dear_one_is_made_once_the_interval_passed(self, tmp_path):
        assert commit_steps(tmp_path, 25, cost=100, checkpoint_seconds=10) == [2, 12, 22, 25]

    def test_one_is_due_when_the_next_look_would_be_too_late(self, tmp_path, monkeypatch):
        monkeypatch.setattr(attempt, "GLANCE_SECONDS", 1.0)
        clock, store = Clock(), Store(tmp_path)
        order = make_order(storage=str(tmp_path), checkpoint_seconds=10)
        training = Training(trial(training={"steps": 9, "evaluate_every": 1000}), 0)
        replicate = Replicate(training, order, store, lambda: False, lambda: False, clock)
        replicate._cost = 100.0
        clock.now = 8.5
        assert not replicate.is_due()
        clock.now = 9.0
        assert replicate.is_due()

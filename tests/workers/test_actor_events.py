"""What is ready is handled one event at a time, in one look at Ray."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from eigensweep.workers.driver.tune import actor_events
from eigensweep.workers.driver.tune.actor_events import PromptActorManager


class Ray:
    """Answers that are ready, by name."""

    def __init__(self) -> None:
        self.ready: set[str] = set()
        self.looks: list[list[str]] = []

    def wait(
        self, futures: list[str], num_returns: int, timeout: float | None
    ) -> tuple[list[str], list[str]]:
        self.looks.append(sorted(futures))
        due = [future for future in futures if future in self.ready][:num_returns]
        return due, [future for future in futures if future not in due]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    made = Ray()
    monkeypatch.setattr(actor_events, "ray", made)
    return made


@pytest.fixture
def manager() -> PromptActorManager:
    room = Mock()
    room.get_resource_futures.return_value = []
    return PromptActorManager(resource_manager=room)


def follow(manager: PromptActorManager, *names: str) -> list[str]:
    """Let the manager follow tasks; return the list of those that it has handled."""
    handled: list[str] = []
    events: Any = manager._actor_task_events

    def resolve(name: str) -> None:
        events.discard_future(name)
        handled.append(name)

    events.resolve_future = resolve
    for name in names:
        events.track_future(name)
    return handled


def test_what_is_ready_together_is_found_in_one_look(ray, manager):
    handled = follow(manager, "a", "b", "c")
    ray.ready = {"a", "b"}
    assert manager.next(timeout=0)
    assert len(handled) == 1
    looks = len(ray.looks)
    assert manager.next(timeout=0)
    assert sorted(handled) == ["a", "b"]
    assert len(ray.looks) == looks, "nothing was asked again"
    assert not manager.next(timeout=0)
    assert ray.looks[-1] == ["c"]


def test_what_was_given_up_meanwhile_is_not_handled(ray, manager):
    handled = follow(manager, "a", "b", "c")
    ray.ready = {"a", "b", "c"}
    assert manager.next(timeout=0)
    given_up = manager._ready[0]
    manager._actor_task_events.discard_future(given_up)
    assert manager.next(timeout=0)
    assert not manager.next(timeout=0)
    assert sorted([*handled, given_up]) == ["a", "b", "c"]


def test_a_place_that_becomes_free_is_no_event_of_its_own(ray, manager):
    handled = follow(manager, "a")
    room = manager._resource_manager
    room.get_resource_futures.return_value = ["place"]
    room.update_state.side_effect = room.get_resource_futures.return_value.clear
    ray.ready = {"place", "a"}
    assert manager.next(timeout=1)
    assert room.update_state.called
    assert handled == ["a"]

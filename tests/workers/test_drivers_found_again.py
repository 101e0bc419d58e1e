"""Drivers on a Ray that outlived the service, as the next service finds them. Ray is played."""

from __future__ import annotations

from typing import Any

import pytest

from eigensweep.workers.cluster import ray_cluster
from eigensweep.workers.cluster.ray_cluster import RayCluster
from eigensweep.workers.shared.deaths import Death


class Question:
    """A method of a driver's process."""

    def __init__(self, answers: dict[str, Any]) -> None:
        self._answers = answers

    def remote(self, experiment: str) -> Any:
        return self._answers.get(experiment, (None, None))


class Process:
    """A driver's process, with the states of its experiments."""

    def __init__(self, **states: str) -> None:
        self.states: dict[str, Any] = {each: (state, None) for each, state in states.items()}
        self.state = Question(self.states)


class PlayedRay:
    """What Ray knows: processes by their names, and which experiment has which of them."""

    def __init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.notes: dict[str, str] = {}
        self.killed: list[Any] = []

    def get_actor(self, name: str, namespace: str) -> Process:
        if name not in self.processes:
            raise ValueError(name)
        return self.processes[name]


@pytest.fixture
def outer(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    played = PlayedRay()
    monkeypatch.setattr(ray_cluster.ray, "get_actor", played.get_actor)
    monkeypatch.setattr(ray_cluster.ray, "get", lambda answer, timeout: answer)
    monkeypatch.setattr(
        ray_cluster.ray, "kill", lambda actor, no_restart: played.killed.append(actor)
    )
    monkeypatch.setattr(ray_cluster, "_find_place", played.notes.get)
    monkeypatch.setattr(ray_cluster, "_note_place", played.notes.__setitem__)
    monkeypatch.setattr(ray_cluster, "_forget_place", lambda each: played.notes.pop(each, None))
    return played


def test_all_experiments_of_a_shared_process_are_found_and_the_end_of_one_leaves_the_others(outer):
    outer.processes["p"] = process = Process(a="running", b="running", c="running")
    outer.notes.update({each: "p" for each in "abc"})
    cluster = RayCluster(None, driver_experiments=3)
    first, second = cluster.find("a"), cluster.find("b")
    assert (first.process, second.process) == ("p", "p")
    assert cluster.find("a") is first
    process.states.update(a=("ended", None), b=("died", Death("no room")))
    assert (first.state(), second.state(), second.death) == ("ended", "died", Death("no room"))
    assert cluster.find("a") is None
    assert cluster.find("c").state() == "running", "nobody had found it, and it goes on"
    assert outer.killed == []
    assert set(outer.notes) == {"b", "c"}


def test_a_process_that_was_never_told_to_begin_counts_as_dead(outer):
    outer.processes["p"] = Process(other="running")
    outer.notes["a"] = "p"
    handle = RayCluster(None)._find_in_cluster("a")
    assert (handle.state(), handle.death) == ("died", Death(ray_cluster.NEVER_TOLD))
    assert outer.killed == [], "the other one goes on"
    assert RayCluster(None).find("a") is None
    assert outer.notes == {}


def test_a_process_that_is_gone_is_not_found(outer):
    outer.notes["a"] = "p"
    assert RayCluster(None).find("a") is None


def test_on_our_own_ray_nothing_is_left_of_an_earlier_service(outer, tmp_path):
    outer.processes["p"] = Process(a="running")
    outer.notes["a"] = "p"
    folder: Any = tmp_path
    assert RayCluster(folder).find("a") is None

"""A real service with real drivers shares four places between two users."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from helpers.waiting import wait_until

from eigensweep.service.record.users.accounts import Accounts

TASK = {
    **{"name": "copying", "delay": 4, "symbols": 2, "batch_size": 4},
    **{"train_size": None, "valid_size": 8, "test_size": 8},
}
LAST = 4
"""Trials at the end of an experiment that are not looked at: it wants less than its share then."""


def make_spec(seed: int, trials: int, priority: int = 0) -> dict[str, Any]:
    """Return an experiment of trials that sleep for about a second."""
    return {
        "task": TASK,
        "model": {"name": "toy_slow", "hidden_size": 4, "seconds": 0.1},
        "training": {"steps": 8, "evaluate_every": 8},
        "search": {"method": "grid", "space": {"model.shade": list(range(trials))}},
        "seed": seed,
        "priority": priority,
    }


def list_attempts(service: Any, id: str) -> list[tuple[float, float]]:
    """Return when each attempt of an experiment's trials began and ended, in order."""
    attempts = [each for trial in service.trials(id) for each in trial["attempts"]]
    moments = [(each["started_at"], each["ended_at"]) for each in attempts if each["ended_at"]]
    return sorted(
        (datetime.fromisoformat(began).timestamp(), datetime.fromisoformat(ended).timestamp())
        for began, ended in moments
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_users_share_four_places_within_a_tenth(service):
    service.env |= {"EIGENSWEEP_CPUS": "4", "EIGENSWEEP_MAX_EXPERIMENTS": "3"}
    service.start()
    accounts = Accounts(f"sqlite:///{service.folder / 'home' / 'eigensweep.db'}")
    tokens = {user: accounts.create_token(user, "submit", None).token for user in ("anna", "ben")}
    service.token = tokens["anna"]
    first = service.post(make_spec(1, 400))["id"]
    wait_until(lambda: len(list_attempts(service, first)) >= 4)
    service.token = tokens["ben"]
    second = service.post(make_spec(2, 24))["id"]
    last = service.post(make_spec(3, 2, priority=-1))["id"]
    waiting = service.wait_for(last, lambda found: found["state"] == "waiting_for_room")
    assert service.wait(second)["state"] == "completed"
    service.token = tokens["anna"]
    assert service.experiment(first)["state"] == "running", "it was over before the window was"
    service.request(f"/v1/experiments/{first}/cancel", {})
    assert service.wait(first)["state"] == "cancelled"
    assert service.wait(last)["state"] == "completed"
    assert waiting["owner"] == "ben"
    ran = {id: list_attempts(service, id) for id in (first, second)}
    begin = ran[second][2][0]
    end = ran[second][-LAST][0]
    busy = {
        id: sum(max(0.0, min(ended, end) - max(began, begin)) for began, ended in attempts)
        for id, attempts in ran.items()
    }
    assert min(busy.values()) > 0
    assert busy[second] == pytest.approx(sum(busy.values()) / 2, rel=0.1), (busy, ran)
    assert list_attempts(service, last)[0][0] > end
    service.stop()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_with_the_defaults_sweeps_of_three_users_train_at_once(service):
    service.env["EIGENSWEEP_CPUS"] = "4"
    service.start()
    accounts = Accounts(service.database_url)
    posted = {}
    for number, user in enumerate(("anna", "ben", "cleo")):
        service.token = accounts.create_token(user, "submit", None).token
        posted[user] = [service.post(make_spec(10 * number + n, 400))["id"] for n in range(2)]
    first = [ids[0] for ids in posted.values()]
    wait_until(
        lambda: all(service.experiment(id)["progress"]["running"] for id in first),
        lambda: [service.experiment(id)["progress"] for id in first],
    )
    assert {service.experiment(id)["state"] for id in first} == {"running"}
    others = [service.experiment(ids[1]) for ids in posted.values()]
    assert [(each["state"], each["queue_place"]) for each in others] == [
        ("queued", 1),
        ("queued", 2),
        ("queued", 3),
    ]
    service.stop()

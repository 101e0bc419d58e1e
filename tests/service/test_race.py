"""What the API, the command line and the pages say of a race for more seeds."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.played import SPEC, open_trial, seed_result
from starlette.testclient import TestClient

from eigensweep.client.answers.answers import Answer, describe_race
from eigensweep.results.seeds import summarise
from eigensweep.service.record.ledger import RecordLedger

RACE = {"replicates": 3, "racing": {"most": 5, "seeds": 1}}
MEANS = (0.1, 0.101, 0.4)
"""The first two trials cannot be told apart; the third is worse."""


def result_of(number: int, seeds: int, first: int = 0) -> Any:
    noise = (0.001, -0.001, 0.002, -0.002, 0.001)
    return summarise(
        [
            seed_result(seed, MEANS[number] + (noise[seed] if number == 1 else 0.0), "completed")
            for seed in range(first, first + seeds)
        ]
    )


class Race:
    """An experiment of three trials whose driver the test plays."""

    def __init__(self, client: TestClient, record: Any) -> None:
        self.client = client
        self.id = client.post("/v1/experiments", json={**SPEC, **RACE}).json()["id"]
        self.ledger = RecordLedger(record.url, self.id, record.claim(self.id).generation)
        self.ledger.set_total(3)
        for number in range(3):
            open_trial(self.ledger, number, "scornn", 0.1)
            result = result_of(number, 3)
            self.ledger.finish(number, self.ledger.begin(number), "completed", result)

    def reopen(self, number: int, seeds: int) -> None:
        config = self.ledger.load()[number].config | {"replicates": seeds}
        self.ledger.reopen(number, config, f"seed {seeds - 1} of the race")

    def widen(self, number: int, seeds: int) -> None:
        self.reopen(number, seeds)
        result = result_of(number, seeds)
        self.ledger.finish(number, self.ledger.begin(number), "completed", result)

    def read(self) -> dict[str, Any]:
        answer = self.client.get(f"/v1/experiments/{self.id}/race")
        assert answer.status_code == 200, answer.text
        content: dict[str, Any] = answer.json()
        return content


@pytest.fixture
def race(client: TestClient, record: Any) -> Race:
    return Race(client, record)


def test_before_the_search_is_over_a_race_waits(race):
    found = race.read()
    assert (found["state"], found["rounds"], found["seeds"]) == ("waiting", [], [3, 4, 5])


def test_a_race_that_runs_says_who_trains_on_and_why(race):
    race.widen(0, 4)
    race.reopen(1, 4)
    found = race.read()
    assert found["state"] == "running"
    assert found["words"] == (
        "trial 0 leads with 3 seeds and is not distinguishable from trial 1; trial 1 trains up to "
        "4 seeds"
    )
    (played,) = found["rounds"]
    assert (played["leader"], played["rivals"], played["worse"]) == (0, [1], [2])
    leader, rival, worse = found["racers"]
    assert (leader["number"], leader["seeds"], leader["behind"]) == (0, 4, None)
    assert rival["behind"]["mean"] == pytest.approx(0.001 + 0.002 / 3)
    assert rival["behind"]["low"] < 0 < rival["behind"]["high"]
    verdicts = [each["verdict"] for each in found["racers"]]
    assert verdicts == ["leads", "not distinguishable", "worse"]
    assert found["wanted_e_value"] == pytest.approx(40)
    assert rival["looks"][-1]["e_value"] < 40 < worse["looks"][-1]["e_value"]
    assert rival["wanted"] > 3
    assert found["core_hours"]["spent"] == pytest.approx(10 * 1.5 / 3600)
    page = race.client.get(f"/experiments/{race.id}").text
    assert "The race for more seeds" in page


def test_a_trial_that_trains_on_keeps_its_value_and_says_why(race):
    race.reopen(1, 4)
    trial = race.client.get(f"/v1/experiments/{race.id}/trials/1").json()
    assert (trial["state"], trial["reopened_for"]) == ("waiting", "seed 3 of the race")
    assert trial["statistics"]["value"]["n"] == 3
    best = race.client.get(f"/v1/experiments/{race.id}").json()
    assert (best["best"]["number"], best["eta_seconds"]) == (0, None)
    assert best["progress"]["fraction"] is None


def test_the_end_of_a_race_is_told_with_what_is_open(race):
    for number in (0, 1):
        race.widen(number, 4)
    for number in (0, 1):
        race.widen(number, 5)
    found = race.read()
    assert found["state"] == "over"
    assert found["words"].startswith("trial 0 leads with 5 seeds and is not distinguishable from")
    lines = str(Answer(found, describe_race)).splitlines()
    assert lines[0].split()[:5] == ["trial", "arm", "settings", "n", "mean"]
    assert lines[1].split()[-1] == "leads"
    assert "3 seeds: 2 stay in the race, 1 leave" in lines
    assert lines[-1] == f"over: {found['words']}"
    (told,) = [line for line in lines if line.startswith("trial 1 against the leader: e = ")]
    assert f"takes about {found['racers'][1]['wanted']} seeds like these to decide" in told
    assert [look["seeds"] for look in found["racers"][1]["looks"]] == [3, 4, 5]
    ranked = race.client.get(f"/v1/experiments/{race.id}/trials?sort=value&limit=1").json()
    following = f"/v1/experiments/{race.id}/trials?sort=value&cursor={ranked['next_cursor']}"
    order = [*ranked["items"], *race.client.get(following).json()["items"]]
    assert [(t["number"], t["statistics"]["value"]["n"]) for t in order] == [(0, 5), (1, 5), (2, 3)]


def test_one_that_ended_in_a_race_says_so_and_keeps_results(race):
    race.reopen(1, 4)
    race.ledger.end("cancelled")
    found = race.read()
    assert found["state"] == "stopped"
    assert found["words"].startswith("the experiment ended before the race was over; trial 0 leads")
    assert race.client.get(f"/v1/experiments/{race.id}").json()["progress"]["completed"] == 3


def test_without_a_race_no_page_has_a_place_for_it(client, record):
    id = client.post("/v1/experiments", json=SPEC).json()["id"]
    found = client.get(f"/v1/experiments/{id}/race").json()
    assert (found["state"], found["racers"]) == ("none", [])
    assert str(Answer(found, describe_race)).startswith(
        "none: every trial has the same number of seeds"
    )
    assert "The race for more seeds" not in client.get(f"/experiments/{id}").text

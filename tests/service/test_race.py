"""What the API, the command line and the pages say of a race for more seeds."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from helpers.played import SPEC, open_trial, seed_result
from sqlalchemy import update
from starlette.testclient import TestClient

from eigensweep.client.answers.answers import Answer, describe_race
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import Outcome, Source
from eigensweep.search_spaces.planning import find_seeds
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import TrialRow
from eigensweep.service.record.views.overviews import list_finished

RACE = {"replicates": 3, "racing": {"most": 5, "seeds": 1}}
MEANS = (0.1, 0.101, 0.4)
"""The first two trials cannot be told apart; the third is worse."""


def result_of(number: int, seeds: int, first: int = 0) -> Any:
    noise = (0.001, -0.001, 0.002, -0.002, 0.001)
    return summarise(
        [
            seed_result(seed, MEANS[number] + (noise[seed] if number else 0.0), "completed")
            for seed in range(first, first + seeds)
        ]
    )


class Race:
    """An experiment of three trials whose driver the test plays."""

    def __init__(self, client: TestClient, record: Any, reused_from: Source | None = None) -> None:
        self.client = client
        self.id = client.post("/v1/experiments", json={**SPEC, **RACE}).json()["id"]
        self.ledger = RecordLedger(record.url, self.id, record.claim(self.id).generation)
        self.ledger.set_total(3)
        for number in range(3):
            open_trial(self.ledger, number, "scornn", 0.1)
            result = replace(result_of(number, 3), reused_from=reused_from)
            outcome: Outcome = "completed" if reused_from is None else "reused"
            self.ledger.finish(number, self.ledger.begin(number), outcome, result)

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


def test_a_comparison_counts_who_trains_more_seeds(race, record):
    for number in (0, 1):
        race.reopen(number, 4)
        race.ledger.begin(number)
    spent = update(TrialRow).where(TrialRow.number == 0).values(cpu_seconds=36_000)
    database.write(record.url, lambda rows: rows.execute(spent))
    asked = {"of": [race.id, f"{race.id}/1", f"{race.id}/2"]}
    found = race.client.get("/v1/compare", params=asked).json()
    assert [side["trial"] for side in found["sides"]] == [0, 1, 2]
    assert [side["state"] for side in found["sides"]] == ["completed"] * 3
    assert all(pair["valid"]["reason"] is None for pair in found["pairs"])
    effort = race.client.get("/v1/compare/effort", params={"of": [race.id, f"{race.id}/scornn"]})
    assert [len(side["points"]) for side in effort.json()["sides"]] == [3, 3]
    hours = [side["points"][-1]["core_hours"] for side in effort.json()["sides"]]
    assert hours == pytest.approx([3 * 3 * 1.5 / 3600] * 2)
    assert len(list_finished(record, race.id)["scornn"]) == 3
    table = race.client.get(f"/v1/experiments/{race.id}/trials.csv").text.splitlines()
    assert [line.split(",")[0] for line in table[1:]] == ["1", "2", "3"]


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
    wanted = found["racers"][1]["wanted"]
    assert f"(40 decide): not distinguishable; at this difference it takes about {wanted} " in told
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


def widen_arms(client: TestClient, record: Any, seeds: int) -> dict[str, Any]:
    """Return the race of two arms of two configurations, whose best ones have so many seeds."""
    spec = {**SPEC, "replicates": 3, "racing": {"between": "arms", "most": 9}}
    id = client.post("/v1/experiments", json=spec).json()["id"]
    ledger = RecordLedger(record.url, id, record.claim(id).generation)
    # The seeds that choose a configuration say the opposite of the others.
    values = ([0.1, 0.1, 0.1, 0.7, 0.8, 0.9, 0.8], [0.5, 0.5, 0.5, 0.4, 0.6, 0.5, 0.4])
    for number, arm in enumerate(("scornn", "scornn", "lstm", "lstm")):
        open_trial(ledger, number, arm, 0.1, 3)
        known = [v + number % 2 for v in values[number // 2]]
        first = [seed_result(seed, v, "completed") for seed, v in enumerate(known[:3])]
        ledger.finish(number, ledger.begin(number), "completed", summarise(first))
    for number in (0, 2):
        config = ledger.load()[number].config | {"replicates": max(4, seeds)}
        ledger.reopen(number, config, "the race")
        known = values[number // 2][:seeds]
        if seeds > 3:
            more = [seed_result(seed, v, "completed") for seed, v in enumerate(known)]
            ledger.finish(number, ledger.begin(number), "completed", summarise(more))
    answer = client.get(f"/v1/experiments/{id}/race")
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_seeds_that_chose_a_configuration_show_no_difference(client, record):
    found = widen_arms(client, record, 7)
    leader, other = found["racers"]
    assert (leader["number"], other["number"], other["verdict"]) == (2, 0, "not distinguishable")
    apart = [0.3, 0.2, 0.4, 0.4]
    assert other["behind"]["n"] == other["looks"][-1]["seeds"] == 4
    assert other["behind"]["mean"] == pytest.approx(fmean(apart))
    assert other["looks"][-1]["mean"] == pytest.approx(fmean(apart))
    effect, error = fmean(apart) / stdev(apart), 1 / found["wanted_e_value"]
    assert other["wanted"] == 3 + find_seeds(effect, error)
    assert other["value"]["n"] == 7


def test_before_a_seed_decides_nobody_is_behind(client, record):
    found = widen_arms(client, record, 3)
    assert found["state"] == "running"
    assert [(each["behind"], each["wanted"]) for each in found["racers"]] == [(None, None)] * 2
    assert found["core_hours"]["needed"] is None
    lines = str(Answer(found, describe_race)).splitlines()
    assert [line.split().count("leads") for line in lines[1:3]] == [1, 0]


def test_what_would_decide_costs_time_where_results_are_reused(client, record):
    race = Race(client, record, reused_from=Source("e0", 0))
    race.reopen(0, 4)
    hours = race.read()["core_hours"]
    assert hours["spent"] == 0
    wanted = race.read()["racers"][1]["wanted"]
    assert hours["needed"] == pytest.approx(2 * (wanted - 3) * 1.5 / 3600)


def test_without_a_race_no_page_has_a_place_for_it(client, record):
    id = client.post("/v1/experiments", json=SPEC).json()["id"]
    found = client.get(f"/v1/experiments/{id}/race").json()
    assert (found["state"], found["racers"]) == ("none", [])
    assert str(Answer(found, describe_race)).startswith(
        "none: every trial has the same number of seeds"
    )
    assert "The race for more seeds" not in client.get(f"/experiments/{id}").text

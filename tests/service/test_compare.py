"""Comparisons over a real record: which trial a name means, what is tested, what is refused."""

from __future__ import annotations

import io
import re
from html import unescape
from itertools import permutations
from typing import Any

import pytest
from pandas import read_csv
from sqlalchemy import update

from eigensweep.client.answers.answers import Answer, describe_effort, describe_more_seeds
from eigensweep.results.seeds import summarise
from eigensweep.results.statistics import compare_paired, holm
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import ExperimentRow, TrialRow
from eigensweep.tasks import TASKS
from eigensweep.tasks.copying import CopyingConfig

GOOD, CLOSE, BAD = [0.10, 0.11, 0.13, 0.12], [0.11, 0.10, 0.13, 0.13], [0.30, 0.33, 0.31, 0.32]
"""Validation values of seeds 0 to 3; the test data scores twice as much."""

ARMS = [{"model": {"name": name, "hidden_size": 6}} for name in ("lstm", "gru")]


@pytest.fixture
def run(client, record, spec):
    """Post an experiment whose trials have ended with these values, by arm; return its id."""

    def run(trials: list[tuple[str, list[float]]], *, outcome: str = "completed", **changes: Any):
        settings = {"search": {"method": "grid"}, **changes}
        body = spec(model=None, arms=ARMS, replicates=4, **settings)
        id = client.post("/v1/experiments", json=body).json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        for number, (arm, values) in enumerate(trials):
            config = {"task": body["task"], "training": {"steps": 100}}
            ledger.open(number, arm, {}, config, f"hash{number}")
            result = summarise(
                [
                    ReplicateResult(
                        seed=seed,
                        outcome="completed",
                        value=value,
                        valid={"cross_entropy": value, "recall_accuracy": 1 - value},
                        test={"cross_entropy": 2 * value},
                    )
                    for seed, value in enumerate(values)
                ]
            )
            ledger.finish(number, ledger.begin(number), outcome, result)
        return id

    return run


@pytest.fixture
def compare(client):
    def compare(*names: str, **query: Any) -> dict[str, Any]:
        answer = client.get("/v1/compare", params={"of": list(names), **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return compare


def test_every_pair_is_tested_over_shared_seeds_and_corrected(run, compare):
    id = run([("lstm", BAD), ("lstm", GOOD), ("gru", CLOSE), ("gru", BAD)])
    found = compare(f"{id}/lstm", f"{id}/2", f"{id}/0")
    assert [(s["trial"], s["chosen"]) for s in found["sides"]] == [
        (1, "best of the arm on validation data"),
        (2, "named"),
        (0, "named"),
    ]
    assert found["comparisons"] == {"valid": 3, "test": 3}
    columns = [dict(enumerate(values)) for values in (GOOD, CLOSE, BAD)]
    pairs = [(0, 1), (0, 2), (1, 2)]
    p = [compare_paired(columns[a], columns[b]).p for a, b in pairs]
    for split in ("valid", "test"):
        each = [pair[split] for pair in found["pairs"]]
        verdicts = [one["verdict"] for one in each]
        assert verdicts == ["not distinguishable", "better", "better"]
        assert [one["p"] for one in each] == pytest.approx(p)
        assert [one["corrected_p"] for one in each] == pytest.approx(holm(p))
    baseline = 2 * 2.0794415 / 9
    one = found["pairs"][1]["test"]
    assert (one["mean"], one["effect"]) == pytest.approx((-0.4, -0.4 / baseline))
    assert one["words"].startswith(f"{id}/lstm is better than {id}/0 on test data: cross_entropy")
    assert one["words"].endswith("corrected for 3 comparisons; n = 4, seeds 0 to 3)")
    assert "is not distinguishable from" in found["pairs"][0]["valid"]["words"]


def test_a_difference_is_a_share_of_the_baseline_of_its_data(run, compare, monkeypatch):
    monkeypatch.setattr(CopyingConfig, "baselines_on", lambda task, split: {"cross_entropy": 8.0})
    id = run([("lstm", BAD), ("gru", GOOD)])
    pair = compare(f"{id}/0", f"{id}/1")["pairs"][0]
    assert pair["test"]["effect"] == pytest.approx(pair["test"]["mean"] / 8)
    assert pair["valid"]["effect"] == pytest.approx(pair["valid"]["mean"] / (2 * 2.0794415 / 9))


def test_a_look_after_each_seed_tells_what_they_say_so_far(run, compare):
    id = run([("lstm", GOOD), ("gru", CLOSE), ("gru", BAD)])
    found = compare(f"{id}/0", f"{id}/2")
    seen = found["pairs"][0]["test"]["so_far"]
    assert (seen["decided"], seen["verdict"], seen["wanted"]) == (True, "better", 20)
    assert [look["seeds"] for look in seen["looks"]] == [2, 3, 4]
    assert seen["looks"][-1]["e_value"] == seen["e_value"]
    alike = compare(f"{id}/0", f"{id}/1")["pairs"][0]["test"]["so_far"]
    assert alike["e_value"] < 1
    decided = run([("lstm", [*GOOD, 0.11, 0.12]), ("gru", [*BAD, 0.33, 0.31])])
    found = compare(f"{decided}/0", f"{decided}/1")
    seen = found["pairs"][0]["test"]["so_far"]
    assert seen["decided"]
    assert seen["low"] < found["pairs"][0]["test"]["low"] < seen["high"] < 0
    assert next(describe_more_seeds(found)).endswith("; decided, better")
    found = compare(f"{id}/0", f"{id}/1")
    seen = found["pairs"][0]["test"]["so_far"]
    assert next(describe_more_seeds(found)).endswith(
        f" (20 decide); at this difference that takes about {seen['seeds']} seeds"
    )


def test_sides_that_differ_by_less_than_matters_are_equivalent(run, compare):
    id = run([("lstm", GOOD), ("gru", CLOSE)])
    open_ = compare(f"{id}/0", f"{id}/1", smallest=0.01)["pairs"][0]["test"]
    assert (open_["verdict"], open_["so_far"]["verdict"]) == ("not distinguishable",) * 2
    plan = open_["so_far"]["plan"]
    assert (plan["difference"], plan["seeds"] > 4) == (0.01, True)
    found = compare(f"{id}/0", f"{id}/1", smallest=0.2)
    test = found["pairs"][0]["test"]
    assert (found["smallest"], test["verdict"]) == (0.2, "equivalent")
    assert test["alike_p"] < 0.05 < test["corrected_p"]
    assert " is equivalent to " in test["words"]
    assert "by no more than 0.2 (95% interval" in test["words"]
    assert compare(f"{id}/0", f"{id}/1")["pairs"][0]["test"]["alike_p"] is None


def test_an_experiment_is_its_best_trial_by_any_metric(run, compare):
    a, b = run([("lstm", BAD), ("gru", GOOD)]), run([("lstm", BAD)])
    found = compare(a, b, metric="recall_accuracy")
    assert [side["trial"] for side in found["sides"]] == [1, 0]
    assert found["sides"][0]["metric"]["better"] == "higher"
    valid, test = found["pairs"][0]["valid"], found["pairs"][0]["test"]
    assert (valid["verdict"], valid["mean"]) == ("better", pytest.approx(0.2))
    assert test["reason"] == f"{a} has no recall_accuracy on test data"


def test_a_task_that_is_gone_leaves_what_its_trials_came_to(run, client, record):
    id = run([("lstm", GOOD), ("gru", BAD)])
    task = {"name": "mytask"}
    spec = {**record.row(id).spec, "task": task}
    change = update(ExperimentRow).where(ExperimentRow.id == id).values(spec=spec)
    config = update(TrialRow).where(TrialRow.experiment_id == id).values(config={"task": task})
    database.write(record.url, lambda rows: [rows.execute(each) for each in (change, config)])
    query = f"of={id}/0&of={id}/1"
    assert client.get(f"/v1/compare?{query}").status_code == 200
    assert client.get(f"/compare?{query}").status_code == 200
    for place in ("compare", "compare/effort"):
        refused = client.get(f"/v1/{place}?{query}&metric=recall_accuracy")
        assert (refused.status_code, "mytask" in refused.json()["detail"]) == (409, True)


def test_what_cannot_be_compared_says_why(run, compare):
    id = run([("lstm", GOOD), ("gru", [0.2])])
    longer = run([("lstm", GOOD)], task={"name": "copying", "delay": 9, "symbols": 2})
    stopped = run([("lstm", GOOD)], outcome="pruned")
    wider = {"name": "copying", "delay": 5, "symbols": 2, "batch_size": 8}
    for other, words in {
        f"{id}/gru": "one shared seed gives no interval",
        f"{id}/0": f"both are trial 0 of experiment {id}",
        longer: "their tasks differ in delay (5 and 9)",
        f"{stopped}/0": f"trial 0 of experiment {stopped} is pruned",
    }.items():
        found = compare(f"{id}/lstm", other)["pairs"][0]["test"]
        assert (found["verdict"], found["reason"]) == ("not comparable", words)
        assert words in found["words"]
    found = compare(id, run([("lstm", BAD)], task=wider))["pairs"][0]["test"]
    assert found["verdict"] == "better"  # the batch size is part of the training


@pytest.fixture
def search(client, record, spec):
    """Post a random search whose trials ended so, by arm, with a core hour each; return its id."""

    def search(trials: list[tuple[str, str, float | None]], **changes: Any) -> str:
        space = {"optimizer.lr": {"low": 0.001, "high": 0.1, "log": True}}
        settings = {"method": "random", "trials": 40, "space": space}
        body = spec(model=None, arms=ARMS, search=settings, **changes)
        answer = client.post("/v1/experiments", json=body)
        assert answer.status_code == 201, answer.text
        id = answer.json()["id"]
        ledger = RecordLedger(record.url, id, record.claim(id).generation)
        for number, (arm, outcome, value) in enumerate(trials):
            ledger.open(number, arm, {}, {"task": body["task"]}, f"hash{number}")
            has_none = value is None or outcome == "pruned"
            test = {} if has_none else {"cross_entropy": 2 * value, "mse": 2 * value}
            result = Result(value=value, test=test, seconds=3600.0)
            ledger.finish(number, ledger.begin(number), outcome, result)
        spend(record, id, 3600.0)
        return id

    return search


def spend(record: Any, id: str, seconds: float, arm: str | None = None) -> None:
    """Set what each trial of an experiment, or of an arm, has cost."""
    change = update(TrialRow).where(TrialRow.experiment_id == id).values(cpu_seconds=seconds)
    change = change if arm is None else change.where(TrialRow.arm == arm)
    database.write(record.url, lambda session: session.execute(change))


@pytest.fixture
def measure(client):
    def measure(*names: str, **query: Any) -> dict[str, Any]:
        answer = client.get("/v1/compare/effort", params={"of": list(names), **query})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return measure


@pytest.mark.parametrize("end", ["completed", "diverged"])
def test_seeds_of_a_race_change_nothing_at_equal_effort(search, measure, record, end):
    id = search([("lstm", "completed", 0.1 + 0.01 * number) for number in range(5)])
    other = search([("lstm", "completed", 0.3), ("lstm", "completed", 0.4)])
    before = measure(id, other)["sides"]
    ledger = RecordLedger(record.url, id, record.row(id).generation)
    entry = ledger.load()[0]
    ledger.reopen(0, {**entry.config, "replicates": 3}, "seeds of a race")
    seeds = [
        ReplicateResult(
            seed=seed,
            outcome=outcome,
            value=value,
            step=9,
            seconds=3600.0,
            test={"cross_entropy": 2 * value, "mse": 2 * value},
        )
        for seed, (value, outcome) in enumerate(
            [(0.1, "completed"), (0.9, "completed"), (0.9, end)]
        )
    ]
    ledger.finish(0, ledger.begin(0), end, summarise(seeds))
    assert record.trial(id, 0).trial.state == end
    assert measure(id, other)["sides"] == before


LONG = [("lstm", "completed", 0.1 + 0.01 * number) for number in range(20)]
SHORT = [("gru", "completed", 0.1 + 0.01 * number) for number in (4, 9, 14, 19)]


def test_who_was_searched_longer_does_not_win_by_that(search, measure):
    id = search([*LONG, *SHORT])
    found = measure(f"{id}/lstm", f"{id}/gru")
    long, short = found["sides"]
    assert (long["trials"], short["trials"]) == (20, 4)
    assert long["points"][-1]["mean"] == pytest.approx(0.2), "the best of all, on test data"
    assert short["points"][-1]["mean"] == pytest.approx(0.28)
    at_four = next(point for point in long["points"] if point["trials"] == 4)
    assert at_four["mean"] == pytest.approx(0.264)  # (n + 1) / (k + 1) = 4.2 places from the best
    assert at_four["low"] < 0.264 < at_four["high"]
    (pair,) = found["pairs"]
    assert (pair["equal"], pair["first_trials"], pair["second_trials"]) == ("trials", 4, 4)
    assert pair["mean"] == pytest.approx(0.264 - 0.28)
    assert pair["verdict"] == "not distinguishable"
    assert pair["words"].startswith(f"At 4 trials each, on test data {id}/lstm reaches 0.264 (")


def test_diverged_and_pruned_trials_count_and_failed_do_not(search, measure):
    trials = [
        *LONG[:4],
        ("lstm", "diverged", 0.05),
        ("lstm", "pruned", 0.06),
        ("lstm", "failed", None),
        ("lstm", "cancelled", None),
    ]
    id = search([*trials, *SHORT])
    side, _ = measure(f"{id}/lstm", f"{id}/gru")["sides"]
    counts = [side[name] for name in ("trials", "diverged", "pruned", "left_out")]
    assert counts == [6, 1, 1, 2]
    trained, worst = [2 * value for _, _, value in LONG[:4]], 2 * SHORT[-1][2]
    assert side["points"][0]["mean"] == pytest.approx((sum(trained) + worst + 0.06) / 6)
    assert side["points"][-1]["mean"] == pytest.approx(0.2), "a pruned one is never the best"
    assert (
        "1 of them diverged, with the worst value, 1 of them pruned, chosen last" in side["words"]
    )
    assert side["words"].endswith("; 2 more failed, were cancelled or are not over")


def test_what_diverged_has_remembered_nothing_of_the_test_data(search, measure):
    task = {"name": "adding", "length": 50, "valid_size": 100, "test_size": 100}
    small = [("lstm", "completed", 0.001), ("lstm", "completed", 0.002)]
    id = search([*small, ("lstm", "diverged", None), ("gru", "completed", 0.001)], task=task)
    side, _ = measure(f"{id}/lstm", f"{id}/gru")["sides"]
    baseline = TASKS["adding"].Config.model_validate(task).baselines_on("test")["mse"]
    assert side["points"][0]["mean"] == pytest.approx((0.002 + 0.004 + baseline) / 3)


def test_a_page_has_the_baseline_of_test_data_for_test_values(search, client):
    task = {"name": "adding", "length": 50, "valid_size": 100, "test_size": 100}
    id = search([("lstm", "completed", 0.05)] * 2, task=task)
    config = TASKS["adding"].Config.model_validate(task)
    page = client.get(f"/experiments/{id}").text
    shares = re.findall(r'data-label="of the baseline">([\d.]+)', page)
    wanted = [0.05 / config.baselines["mse"], 0.1 / config.baselines_on("test")["mse"]]
    assert [float(each) / 100 for each in shares] == pytest.approx(wanted, rel=5e-3)
    side, _ = client.get(f"/v1/compare?of={id}/0&of={id}/1").json()["sides"]
    assert side["test_baseline"] == config.baselines_on("test")["mse"]


def test_a_cheap_model_may_have_more_trials_in_the_same_hours(search, measure, record):
    id = search([*LONG, *SHORT])
    spend(record, id, 36_000.0, "gru")
    found = measure(f"{id}/lstm", f"{id}/gru")
    assert [side["core_hours"] for side in found["sides"]] == pytest.approx([1.0, 10.0])
    by_trials, by_hours = found["pairs"]
    assert (by_hours["equal"], by_hours["hours"]) == ("core hours", pytest.approx(20.0))
    assert (by_hours["first_trials"], by_hours["second_trials"]) == (20, 2)
    assert by_hours["mean"] < by_trials["mean"]
    words = f"core hours each (20 trials of {id}/lstm and 2 of {id}/gru), on test data"
    assert by_hours["words"].startswith(f"At no more than 20 {words}")


def test_a_training_that_went_on_costs_what_it_took_in_all(search, measure, record):
    id = search([*LONG, *SHORT])
    whole = measure(f"{id}/lstm", f"{id}/gru")["sides"][0]["core_hours"]
    spend(record, id, 1.0, "lstm")  # most of it was trained elsewhere
    assert measure(f"{id}/lstm", f"{id}/gru")["sides"][0]["core_hours"] == whole > 0


def test_what_stands_beside_a_search_changes_nothing_of_it(search, measure):
    id = search([*LONG, *SHORT])
    there, back = (measure(*names) for names in permutations([f"{id}/lstm", f"{id}/gru"]))
    assert there["sides"] == back["sides"][::-1]
    for one, other in zip(there["pairs"], back["pairs"], strict=True):
        assert (one["low"], one["high"]) == pytest.approx((-other["high"], -other["low"]))


def test_what_is_no_search_has_no_curve_and_says_why(search, measure, run):
    id = search([*LONG, ("gru", "failed", None)])
    found = measure(f"{id}/lstm", f"{id}/gru", f"{id}/0")
    assert [side["reason"] for side in found["sides"]] == [
        None,
        "no trial of it was trained to an end",
        "it is one trial, not a search",
    ]
    assert found["pairs"] == []
    longer = run([("lstm", GOOD)], task={"name": "copying", "delay": 9, "symbols": 2})
    found = measure(f"{id}/lstm", longer)
    assert found["reason"].endswith("differ in delay (5 and 9)")
    assert [side["points"] for side in found["sides"]] == [[], []]
    lengths = {"search": {"method": "grid", "space": {"task.delay": [5, 9]}}}
    varied = run([("lstm", GOOD), ("lstm", GOOD)], **lengths)
    assert measure(varied, varied)["sides"][0]["reason"] == "its trials differ in task.delay"
    found = measure(id, id, metric="recall_accuracy")
    assert found["sides"][0]["reason"] == "not all of its trials have recall_accuracy on test data"


def test_the_curves_are_a_table_and_stand_on_the_page(search, client, measure):
    id = search([*LONG, *SHORT])
    query = {"of": [f"{id}/lstm", f"{id}/gru"]}
    table = read_csv(io.StringIO(client.get("/v1/compare/effort.csv", params=query).text))
    assert list(table) == ["name", "trials", "core_hours", "gpu_hours", "mean", "low", "high"]
    points = [point for side in measure(*query["of"])["sides"] for point in side["points"]]
    assert table["mean"].tolist() == pytest.approx([point["mean"] for point in points])
    page = unescape(client.get("/compare", params=query).text)
    assert "At equal tuning effort" in page
    assert f"At 4 trials each, on test data {id}/lstm reaches 0.264" in page
    alone = unescape(client.get("/compare", params={"of": [f"{id}/0", f"{id}/1"]}).text)
    assert "At equal tuning effort" not in alone


def test_effort_is_told_on_a_terminal(search, measure):
    id = search([*LONG, *SHORT])
    lines = str(Answer(measure(f"{id}/lstm", f"{id}/gru"), describe_effort)).splitlines()
    assert lines[0].split() == ["name", "trials", "core", "hours", "test", "band"]
    assert f"{id}/lstm: 20 trials by random search" in lines
    assert any(line.startswith("At 4 trials each, on test data") for line in lines)


def test_a_name_of_nothing_is_refused_with_what_there_is(run, client, spec):
    id = run([("lstm", GOOD)])
    queued = client.post("/v1/experiments", json=spec()).json()["id"]
    for names, query, status, words in [
        ([id, f"{id}/rnn"], {}, 404, "its arms are lstm, gru"),
        ([id, f"{id}/7"], {}, 404, "has no trial 7"),
        ([id, f"{id}/{10**20}"], {}, 404, f"a trial is written {id}/NUMBER"),
        ([id, f"{id}/a/b"], {}, 422, "should be EXPERIMENT, EXPERIMENT/NUMBER or EXPERIMENT/ARM"),
        ([id, "e\0"], {}, 422, "should be EXPERIMENT, EXPERIMENT/NUMBER or EXPERIMENT/ARM"),
        ([id, "e" * 121], {}, 422, "should be EXPERIMENT, EXPERIMENT/NUMBER or EXPERIMENT/ARM"),
        ([id, "e0"], {}, 404, "there is no experiment 'e0'"),
        ([id, queued], {}, 409, "has finished"),
        ([id], {}, 422, "should be 2 to 20 names; one alone cannot be compared; two arms are"),
        ([id] * 50, {}, 422, "should be 2 to 20 names; 50 names came"),
        ([id, id], {"metric": "f1"}, 422, "it has cross_entropy, recall_accuracy"),
    ]:
        answer = client.get("/v1/compare", params={"of": names, **query})
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
        effort = client.get("/v1/compare/effort", params={"of": names, **query})
        assert effort.status_code in (status, 200 if status in (404, 409) else status)
        page = client.get("/compare", params={"of": names, **query})
        one = len(names) == 1
        assert page.status_code == (200 if one else status)
        assert ("One alone cannot be compared" if one else words) in unescape(page.text)

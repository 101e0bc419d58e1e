"""Comparisons over a real record: which trial a name means, what is tested, what is refused."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from eigensweep.service.client.answers import describe_more_seeds
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.workers.shared.messages import ReplicateResult
from eigensweep.workers.shared.results import summarise
from eigensweep.workers.shared.statistics import compare_paired, holm

GOOD, CLOSE, BAD = [0.10, 0.11, 0.13, 0.12], [0.11, 0.10, 0.13, 0.13], [0.30, 0.33, 0.31, 0.32]
"""Validation values of seeds 0 to 3; the test data scores twice as much."""

ARMS = [{"model": {"name": name, "hidden_size": 6}} for name in ("lstm", "gru")]


@pytest.fixture
def run(client, record, spec):
    """Post an experiment whose trials have ended with these values, by arm; return its id."""

    def run(trials: list[tuple[str, list[float]]], *, outcome: str = "completed", **changes: Any):
        body = spec(model=None, arms=ARMS, replicates=4, search={"method": "grid"}, **changes)
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


def test_every_pair_is_tested_over_shared_seeds_and_corrected_together(run, compare):
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


def test_who_adds_seeds_and_looks_after_each_is_told_what_they_say_so_far(run, compare):
    id = run([("lstm", GOOD), ("gru", CLOSE), ("gru", BAD)])
    found = compare(f"{id}/0", f"{id}/2")
    seen = found["pairs"][0]["test"]["so_far"]
    assert (seen["decided"], seen["seeds"]) == (False, 5)
    assert 10 < seen["e_value"] < 20
    (line,) = describe_more_seeds(found)
    assert line.endswith("; 20 would decide, which takes about 5 seeds like these")
    alike = compare(f"{id}/0", f"{id}/1")["pairs"][0]["test"]["so_far"]
    assert alike["e_value"] < 1
    decided = run([("lstm", [*GOOD, 0.11, 0.12]), ("gru", [*BAD, 0.33, 0.31])])
    found = compare(f"{decided}/0", f"{decided}/1")
    seen = found["pairs"][0]["test"]["so_far"]
    assert seen["decided"]
    assert seen["low"] < found["pairs"][0]["test"]["low"] < seen["high"] < 0
    assert next(describe_more_seeds(found)).endswith("; decided")


def test_an_experiment_is_its_best_trial_and_another_metric_has_its_own_direction(run, compare):
    a, b = run([("lstm", BAD), ("gru", GOOD)]), run([("lstm", BAD)])
    found = compare(a, b, metric="recall_accuracy")
    assert [side["trial"] for side in found["sides"]] == [1, 0]
    assert found["sides"][0]["metric"]["better"] == "higher"
    valid, test = found["pairs"][0]["valid"], found["pairs"][0]["test"]
    assert (valid["verdict"], valid["mean"]) == ("better", pytest.approx(0.2))
    assert test["reason"] == f"{a} has no recall_accuracy on test data"


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


def test_a_name_that_means_nothing_is_refused_with_what_there_is(run, client, spec):
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
        ([id], {}, 422, "should be 2 to 20 names; one alone cannot be compared"),
        ([id] * 50, {}, 422, "should be 2 to 20 names; 50 names came"),
        ([id, id], {"metric": "f1"}, 422, "it has cross_entropy, recall_accuracy"),
    ]:
        answer = client.get("/v1/compare", params={"of": names, **query})
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
        page = client.get("/compare", params={"of": names, **query})
        one = len(names) == 1
        assert page.status_code == (200 if one else status)
        assert ("One alone cannot be compared" if one else words) in unescape(page.text)

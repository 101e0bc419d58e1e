"""Reproductions that add seeds until the primary claim is decided, with drivers that a test plays.

In the suite a step is compared: that at which 256 units, or 128, come below half of the baseline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from helpers.reproduced import NAME, Reproducer, leave_undrawn
from starlette.testclient import TestClient

from eigensweep.reports.book import make_page
from eigensweep.reports.results import name_file
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import ReplicateResult
from eigensweep.search_spaces.shipped.reproductions import load_suite
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.curves import CurvePoint

FIRST = 10
"""Seeds of the suite."""
LAST = 300
SECONDS = 36.0
"""Of each training: a hundredth of a core hour."""


@dataclass
class Cluster:
    """Plays the drivers: they take over what the ledger has, and train the other seeds."""

    record: Record
    storage: str
    is_first: Callable[[int], bool]
    """By seed, whether 256 units come below half of the baseline before 128 do."""
    trained: list[tuple[int, int]] = field(default_factory=list)
    """Hidden units and seed of every training."""
    places: list[tuple[str, Any, int]] = field(default_factory=list)
    """Arm, learning rate and seed of every training."""
    diverges: Callable[[int, int], bool] = lambda units, seed: False
    """By hidden units and seed, whether a training diverges."""

    def run(self, id: str) -> None:
        """Play one experiment to its end."""
        claim = self.record.claim(id)
        assert claim is not None
        spec = ExperimentSpec.from_stored(claim.spec)
        ledger, store = RecordLedger(self.record.url, id, claim.generation), Store(self.storage)
        for number, point in enumerate(spec.space()):
            config = spec.trial(point)
            name = config.content_hash()
            ledger.open(number, point.arm, point.params, config.model_dump(mode="json"), name)
            attempt = ledger.begin(number)
            part = ledger.find_part(name, config.seed, config.training.steps)
            known = {each.seed: each for each in part.result.by_replicate} if part else {}
            results = []
            for seed in config.seeds:
                key = replicate_key(id, number, seed)
                if seed in known:
                    source = replicate_key(part.source.experiment, part.source.number, seed)
                    curve = store.points(source)
                    results.append(known[seed])
                else:
                    curve, result = self.train(config, seed)
                    results.append(result)
                    self.places.append((point.arm, point.params.get("optimizer.lr"), seed))
                store.begin(key, 1)
                store.commit(key, 1, LAST, {}, curve)
            whole = summarise(results)
            ledger.finish(number, attempt, whole.outcome or "completed", whole)
        ledger.end("completed")

    def train(self, config: Any, seed: int) -> tuple[list[CurvePoint], ReplicateResult]:
        units = config.model.hidden_size
        self.trained.append((units, seed))
        falls = 50 if (units == 256) == self.is_first(seed) else 60
        steps = ((0, 2.0), (falls, 0.01), (LAST, 0.01))
        curve = [CurvePoint(step, {"valid/cross_entropy": value}, 0) for step, value in steps]
        test = {"cross_entropy": 0.01 + 0.001 * seed}
        outcome = "diverged" if self.diverges(units, seed) else "completed"
        result = ReplicateResult(
            seed=seed, value=0.01, step=LAST, seconds=SECONDS, test=test, outcome=outcome
        )
        return curve, result


@pytest.fixture
def reproducer(client: Any, monkeypatch: pytest.MonkeyPatch) -> Reproducer:
    leave_undrawn(monkeypatch)
    return Reproducer(client.app)


@pytest.fixture
def cluster(record: Record, settings: Any) -> Cluster:
    return Cluster(record, settings.storage_folder, lambda seed: True)


def post(client: Any, **more: Any) -> Any:
    body = {"name": NAME, "until_decided": True, **more}
    answer = client.post("/v1/reproductions", json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def follow(client: Any, reproducer: Reproducer, cluster: Cluster, id: str, looks: int = 99) -> Any:
    """Play until the reproduction is over, or has had so many looks; return it."""
    path = f"/v1/reproductions/{id}"
    for _ in range(looks):
        now = client.get(path).json()
        if now["state"] not in ("running", "reporting"):
            break
        (experiment,) = now["experiments"]
        if experiment["state"] != "completed":
            cluster.run(experiment["id"])
        reproducer.tick()
    return client.get(path).json()


def read(client: Any, ended: Any) -> Any:
    assert ended["state"] == "finished", ended["error"]
    return client.get(ended["links"]["report"]["json"]).json()


def test_one_that_is_decided_by_the_first_seeds_adds_none(client, reproducer, cluster):
    posted = post(client)
    assert posted["until_decided"] == {"core_hours": None, "most": 40, "seeds": [FIRST]}
    ended = follow(client, reproducer, cluster, posted["id"])
    report = read(client, ended)
    assert (ended["verdict"], report["looks"]["ended"]) == ("holds", "decided")
    assert len(cluster.trained) == 2 * FIRST
    assert "--until-decided" in report["command"]


def test_seeds_are_added_until_decided_and_none_trains_twice(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    ended = follow(client, reproducer, cluster, post(client)["id"])
    report = read(client, ended)
    assert ended["verdict"] == "holds"
    assert ended["until_decided"]["seeds"] == report["looks"]["seeds"] == [10, 12, 15, 18, 22]
    assert [arm["seeds"] for arm in report["arms"]] == [22, 22]
    assert sorted(cluster.trained) == sorted(set(cluster.trained))
    assert len(cluster.trained) == 2 * 22
    assert report["looks"]["core_hours"] == pytest.approx(2 * 12 * SECONDS / 3600)
    words = client.get(ended["links"]["report"]["md"]).text
    assert "5 looks, with 10, 12, 15, 18, 22 seeds" in words
    assert "anytime-valid" in words
    assert "10, 12, 15, 18, 22" in client.get(f"/reproductions/{ended['id']}").text


def test_added_seeds_go_to_the_arms_of_the_primary_claim(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed % 2 == 0
    posted = post(client, name="nnrnn/figure-5a", core_hours=0.1)
    ended = follow(client, reproducer, cluster, posted["id"])
    report = read(client, ended)
    seeds = {arm["arm"]: arm["seeds"] for arm in report["arms"]}
    assert seeds == {"l1_256": 15, "l2_128": 15, "l2_256": FIRST, "l1_128": FIRST}
    assert report["looks"]["seeds"] == [10, 12, 15], "two arms take 0.02 core hours a seed"
    assert len(cluster.places) == len(set(cluster.places)) == 4 * FIRST + 2 * 5
    assert {claim["verdict"] for claim in report["claims"][1:]} <= {"holds", "not distinguishable"}
    kept = client.get(ended["links"]["report"]["results"]).json()
    places = [trial["place"] for trial in kept["experiments"][0]["trials"]]
    assert len(places) == len(set(places)) == 4
    assert [len(trial["curves"]) for trial in kept["experiments"][0]["trials"]] == [15, 15, 10, 10]


@pytest.mark.slow
def test_added_seeds_train_only_the_value_that_was_chosen(client, reproducer, cluster):
    posted = post(client, name="henaff/figure-4", most=9)
    ended = follow(client, reproducer, cluster, posted["id"])
    assert ended["until_decided"]["seeds"] == [8, 9]
    trained = {place[:2] for place in cluster.places}
    assert trained == {("lt_ornn", 1e-4), ("lt_irnn", 1e-4), ("lstm", 1e-3)}
    arms = read(client, ended)["arms"]
    assert [(arm["trials"], arm["seeds"]) for arm in arms] == [(1, 9)] * 3


@pytest.mark.slow
def test_a_seed_that_diverged_is_not_trained_at_each_look(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    cluster.diverges = lambda units, seed: units == 128 and seed in (1, 11)
    ended = follow(client, reproducer, cluster, post(client)["id"])
    report = read(client, ended)
    assert len(report["looks"]["seeds"]) > 2
    assert {arm["arm"]: arm["diverged_seeds"] for arm in report["arms"]}["128"] == [1, 11]
    assert sorted(cluster.trained) == sorted(set(cluster.trained))


@pytest.mark.slow
def test_with_added_seeds_all_are_cancelled_and_posted_again(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed % 2 == 0
    name = "nnrnn/figure-5a"
    posted = post(client, name=name)
    follow(client, reproducer, cluster, posted["id"], looks=1)
    client.post(posted["links"]["cancel"])
    first = reproducer.reproductions.get(posted["id"]).first["main"].id
    client.post(f"/v1/experiments/{first}/delete", json={"confirm": True})
    assert post(client, name=name)["state"] == "running"
    ended = follow(client, reproducer, cluster, posted["id"], looks=1)
    assert ended["until_decided"]["seeds"] == [10, 12]


@pytest.mark.slow
def test_the_page_of_kept_results_says_how_many_looks_it_took(
    client, reproducer, cluster, tmp_path
):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    ended = follow(client, reproducer, cluster, post(client)["id"])
    (tmp_path / "results").mkdir()
    kept = client.get(ended["links"]["report"]["results"]).content
    (tmp_path / "results" / name_file(NAME, "short")).write_bytes(kept)
    make_page(tmp_path / "results", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "22, in 5 looks |" in page
    assert "anytime-valid" in page


def test_without_the_option_the_same_seeds_decide_nothing(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    posted = client.post("/v1/reproductions", json={"name": NAME}).json()
    ended = follow(client, reproducer, cluster, posted["id"])
    assert (ended["verdict"], ended["until_decided"]) == ("not distinguishable", None)
    assert read(client, ended)["looks"] is None


def test_it_ends_undecided_where_the_core_hours_are_spent(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed % 2 == 0
    ended = follow(client, reproducer, cluster, post(client, core_hours=0.1)["id"])
    looks = read(client, ended)["looks"]
    assert (ended["verdict"], looks["ended"]) == ("not distinguishable", "core-hours")
    assert looks["seeds"] == [10, 12, 15]  # a seed of both arms takes 0.02 core hours
    assert looks["core_hours"] == pytest.approx(0.1)
    assert len(cluster.trained) == 2 * 15

    more = post(client, core_hours=0.15)
    assert more["id"] == ended["id"]
    ended = follow(client, reproducer, cluster, more["id"])
    assert read(client, ended)["looks"]["seeds"] == [10, 12, 15, 17]
    assert len(cluster.trained) == 2 * 17


@pytest.mark.slow
def test_it_ends_undecided_with_the_most_seeds(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed % 2 == 0
    ended = follow(client, reproducer, cluster, post(client, most=13)["id"])
    looks = read(client, ended)["looks"]
    assert (looks["seeds"], looks["ended"]) == ([10, 12, 13], "seeds")


@pytest.mark.parametrize("at", ["training", "making a report", "recording its end"])
@pytest.mark.slow
def test_a_killed_service_goes_on_with_its_seeds(
    client, reproducer, cluster, settings, record, dispatcher, monkeypatch, at
):
    def die(*given: Any, **more: Any) -> Any:
        raise KeyboardInterrupt

    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    posted = post(client)
    follow(client, reproducer, cluster, posted["id"], looks=2)
    if at != "training":
        cluster.run(client.get(posted["links"]["self"]).json()["experiments"][0]["id"])
        if at == "making a report":
            monkeypatch.setattr(reproducer.reports.children, "run", die)
        else:
            reproducer.reports._look_after(reproducer.reproductions.get(posted["id"]))
            monkeypatch.setattr(reproducer.reproductions, "change", die)
        with pytest.raises(KeyboardInterrupt):
            reproducer.tick()
    app = create_app(settings, record, dispatcher)
    with TestClient(app, base_url="http://localhost:8642") as successor:
        ended = follow(successor, Reproducer(app), cluster, posted["id"])
    assert ended["verdict"] == "holds", ended
    assert ended["until_decided"]["seeds"] == [10, 12, 15, 18, 22]
    assert len(cluster.trained) == 2 * 22


@pytest.mark.slow
def test_a_cancelled_one_goes_on_with_its_seeds(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    posted = post(client)
    follow(client, reproducer, cluster, posted["id"], looks=2)
    assert client.post(posted["links"]["cancel"]).json()["state"] == "cancelled"
    again = post(client)
    assert again["until_decided"]["seeds"] == [10, 12, 15]
    assert follow(client, reproducer, cluster, again["id"])["verdict"] == "holds"
    assert len(cluster.trained) == 2 * 22


def test_seeds_of_a_finished_run_are_taken_over(client, reproducer, cluster):
    cluster.is_first = lambda seed: seed not in (0, 3, 7)
    plain = client.post("/v1/reproductions", json={"name": NAME}).json()
    follow(client, reproducer, cluster, plain["id"])
    posted = post(client)
    assert posted["id"] != plain["id"]
    assert posted["experiments"][0]["id"] == plain["experiments"][0]["id"]
    reproducer.tick()
    assert follow(client, reproducer, cluster, posted["id"])["verdict"] == "holds"
    assert len(cluster.trained) == 2 * 22
    assert client.get(plain["links"]["self"]).json()["verdict"] == "not distinguishable"


@pytest.mark.slow
def test_repetitions_of_an_analysis_are_added_too(client, reproducer, monkeypatch):
    suite = load_suite("nnrnn/figure-1b")
    monkeypatch.setitem(suite.analyses["norms"].options, "vectors", 100)  # for 1000 take seconds
    bounds = suite.claims[0]
    monkeypatch.setitem(bounds.__dict__, "at_most", 0.0543)  # within the first seeds' interval
    posted = post(client, name="nnrnn/figure-1b", most=4)
    while reproducer.tick():
        reproducer.make_analyses()
    ended = client.get(posted["links"]["self"]).json()
    assert ended["until_decided"]["seeds"] == [3, 4]
    assert len(ended["analyses"]) == 4


def test_the_plan_tells_seeds_and_hours_of_a_difference(client):
    plan = client.get("/v1/reproduction-suites/nnrnn/figure-2").json()["plan"]["full"]
    assert [each["seeds"] for each in plan] == [8, 18, 57]
    assert all(each["core_hours"] > 0 for each in plan)
    steps = client.get(f"/v1/reproduction-suites/{NAME}").json()["plan"]["short"]
    assert [each["seeds"] for each in steps] == [8, 16]
    assert client.get("/v1/reproduction-suites/nnrnn/figure-1c").json()["plan"]["full"] == []


@pytest.mark.parametrize("limit", [{"core_hours": 2}, {"most": 20}])
def test_limits_of_added_seeds_need_the_option(client, limit):
    answer = client.post("/v1/reproductions", json={"name": NAME, **limit})
    assert answer.status_code == 422
    assert "give 'until_decided', too" in answer.text

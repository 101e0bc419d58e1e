"""What Prometheus reads, and what is made of it in deploy/."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from played import play
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from sqlalchemy import insert, text
from sqlalchemy.exc import OperationalError
from starlette.testclient import TestClient

from eigensweep.protocol.messages import Place
from eigensweep.protocol.states import ENDED
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.app import create_app
from eigensweep.service.api.routes import metrics
from eigensweep.service.api.routes.metrics import FreshCounts, make_registry
from eigensweep.service.counters import HTTP_SECONDS, RESTARTS
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.record import Record
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import TrialRow
from eigensweep.service.record.views import counts
from eigensweep.service.record.views.counts import Counts, Durations, count_all

DEPLOY = Path(__file__).parents[2] / "deploy"
Sample = Callable[..., float | None]


def read_samples(client: TestClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


@pytest.fixture
def sample(client: TestClient) -> Sample:
    """Return a function that asks for one number."""

    def ask(name: str, **labels: str) -> float | None:
        return read_samples(client).get((f"eigensweep_{name}", frozenset(labels.items())))

    return ask


class TestRecord:
    def test_experiments_trials_backlog_and_durations_are_counted(
        self, client, record, tmp_path, sample, spec
    ):
        play(client, record, tmp_path)
        client.post("/v1/experiments", json=spec())

        assert sample("experiments", state="running") == 1
        assert sample("queue_depth") == sample("experiments", state="queued") == 1
        states = ("completed", "failed", "diverged", "invalid", "running", "pruned")
        assert [sample("trials", state=state) for state in states] == [4, 1, 1, 1, 1, 0]
        assert sample("trial_seconds_count", outcome="completed") == 4
        assert sample("trial_seconds_bucket", outcome="completed", le="+Inf") == 4
        assert sample("trial_seconds_count", outcome="invalid") is None, "it never began"
        assert sample("trials_ended_last_hour") == 7
        assert sample("mlflow_backlog", what="trials") == 6
        assert sample("mlflow_delivered_trials_total") == 0

    def test_a_histogram_rises_from_bound_to_bound(self, each_url, spec):
        record = Record(each_url)
        queued, _ = record.add(ExperimentSpec.model_validate(spec()))
        ledger = RecordLedger(each_url, queued.id, record.claim(queued.id).generation)
        for number, seconds in enumerate((0.5, 20, 20, 1e6)):
            _end_trial(each_url, ledger, number, seconds)
        made = count_all(each_url)

        assert made.durations["completed"].below == [1, 0, 2, *[0] * 8, 1]
        assert made.durations["completed"].seconds == pytest.approx(1_000_040.5)
        registry = CollectorRegistry()
        registry.register(_Of(made))
        assert (
            registry.get_sample_value(
                "eigensweep_trial_seconds_bucket", {"outcome": "completed", "le": "30.0"}
            )
            == 3
        )

    def test_deliveries_leave_the_backlog_and_are_counted(self, url, ledger_of):
        ledger = ledger_of()
        for number in range(3):
            _end_trial(url, ledger, number, 1.0)
        ledger.set_delivered({}, "1", [1])
        made = count_all(url)
        assert (made.delivered, made.undelivered_trials) == (1, 2)

        ledger.end("completed")
        assert count_all(url).undelivered_experiments == 1
        ledger.set_tracked()
        assert count_all(url).undelivered_experiments == 0

    def test_only_the_last_hour_counts_for_trials_an_hour(self, url, ledger_of):
        ledger = ledger_of()
        _end_trial(url, ledger, 0, 1.0)
        assert count_all(url, now=time.time() + 3500).ended_last_hour == 1
        assert count_all(url, now=time.time() + 3700).ended_last_hour == 0

    def test_lanes_and_devices_in_use_are_those_of_running_trials(self, url, ledger_of, sample):
        ledger = ledger_of()
        engine = Place("node-1", 7, "cuda:1", lanes=8)
        for number, place in enumerate((engine, engine, Place("node-2", 9, "cpu"))):
            ledger.open(number, "scornn", {"x": number}, {"replicates": 3, "seed": 0}, f"h{number}")
            attempt = ledger.begin(number)
            ledger.report(number, attempt, 10, {"objective": 1.0}, place)

        assert (sample("lanes", use="used"), sample("lanes", use="free")) == (6, 2)
        assert sample("devices_in_use", kind="cuda") == sample("devices_in_use", kind="cpu") == 1

    def test_trials_are_counted_from_an_index_alone(self, url, record):
        plans = []

        def explain(session: Any) -> None:
            made = Counts()
            seen: list[Any] = []
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(session, "execute", lambda query: seen.append(query) or [])
                counts._count_trials(session, made, 0.0)
            compiled = seen[0].compile(
                dialect=session.bind.dialect, compile_kwargs={"literal_binds": True}
            )
            plans.extend(session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {compiled}"))

        database.read(url, explain)
        words = " ".join(str(row[3]) for row in plans)
        assert "COVERING INDEX ix_trials_state_tracked_ended_at_started_at" in words

    def test_counting_takes_a_bounded_share_of_one_core(self, monkeypatch):
        now, asked = [0.0], []

        def count(url: str) -> Counts:
            asked.append(now[0])
            now[0] += 2.0  # a large record
            return Counts()

        monkeypatch.setattr(metrics, "count_all", count)
        fresh = FreshCounts("sqlite://", clock=lambda: now[0])
        for _ in range(100):
            fresh.read()
            now[0] += 1.0

        assert [later - earlier for earlier, later in pairwise(asked)] == [
            pytest.approx(42.0, abs=1.0)
        ] * (len(asked) - 1)
        assert len(asked) == 3

    def test_what_prometheus_takes_for_a_counter_never_falls(self):
        def made(delivered: int, first: int, seconds: float) -> Counts:
            below = [first, *[0] * len(counts.DURATIONS)]
            return Counts(
                delivered=delivered,
                durations={"completed": Durations(below, seconds)},
                device_seconds={"cpu": 2 * seconds, "gpu": 0.0},
            )

        shown = None
        for each in (made(5, 5, 10.0), made(4, 4, 8.0), made(6, 6, 12.0), made(6, 6, 12.0)):
            shown = metrics.keep_rising(shown, each)
        assert shown.delivered == 7
        assert shown.durations["completed"].below[0] == 7
        assert shown.durations["completed"].seconds == 14.0
        assert shown.device_seconds == {"cpu": 28.0, "gpu": 0.0}

    def test_while_the_database_is_away_the_rest_is_shown(self, client, sample, monkeypatch):
        def away(*_: Any) -> None:
            raise OperationalError("select", {}, Exception("gone"))

        monkeypatch.setattr(metrics, "count_all", away)
        monkeypatch.setattr(Record, "ping", away)

        assert sample("ready", part="database") == 0
        assert sample("ready", part="launcher") == 1
        assert sample("trials", state="completed") is None
        assert sample("disk_free_bytes", folder="home") > 0

    @pytest.mark.slow
    def test_a_hundred_thousand_trials_are_counted(self, url, ledger_of):
        ledger = ledger_of()
        rows = [
            {
                **{"experiment_id": ledger.experiment_id, "number": n, "arm": "a", "params": {}},
                **{"state": "completed", "started_at": 1.0, "ended_at": 3.0, "tracked": True},
            }
            for n in range(100_000)
        ]
        database.write(url, lambda session: session.execute(insert(TrialRow), rows))

        assert count_all(url).durations["completed"].below[1] == 100_000


class TestRequests:
    def test_latencies_are_labelled_by_route_and_never_by_path(self, client):
        HTTP_SECONDS.clear()
        client.get("/v1/experiments/0000000000000")
        client.get("/v1/experiments/0000000000001")
        client.get("/v1/nothing/there")
        client.get("/static/page.js")
        client.request("BREW", "/healthz")
        client.get("/")
        found = {
            tuple(sample.labels[label] for label in ("method", "route", "status")): sample.value
            for sample in HTTP_SECONDS.collect()[0].samples
            if sample.name.endswith("_count")
        }
        assert found == {
            ("GET", "/v1/experiments/{id}", "404"): 2,
            ("GET", "other", "404"): 1,
            ("GET", "/static/...", "200"): 1,
            ("other", "/healthz", "405"): 1,
            ("GET", "/", "200"): 1,
        }

    def test_a_driver_that_is_started_again_is_counted(self, client, dispatcher, launcher, spec):
        before = RESTARTS.labels("driver")._value.get()
        client.post("/v1/experiments", json=spec())
        dispatcher.tick()
        assert RESTARTS.labels("driver")._value.get() == before
        launcher.launched[0].now = "died"
        dispatcher.tick()

        assert RESTARTS.labels("driver")._value.get() == before + 1

    def test_who_has_no_token_learns_nothing(self, settings, record, dispatcher):
        own = settings.model_copy(update={"token": SecretStr("let-me-in")})
        client = TestClient(create_app(own, record, dispatcher), base_url="http://localhost")

        assert client.get("/metrics").status_code == 401
        header = {"Authorization": "Bearer let-me-in"}
        assert "eigensweep_trials" in client.get("/metrics", headers=header).text


def exported_names() -> set[str]:
    """Return the names of all samples that /metrics may export."""
    found = set()
    for family in make_registry(None).collect():
        found |= {family.name, *(sample.name for sample in family.samples)}
        if family.type == "counter":
            found.add(f"{family.name}_total")
        if family.type == "histogram":
            found |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        if family.type == "info":
            found.add(f"{family.name}_info")
    for family in metrics.ServiceCollector(None).describe():
        kinds = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
        found |= {f"{family.name}{end}" for end in kinds.get(family.type, ["", "_info"])}
    return found


def named_in(expressions: list[str]) -> set[str]:
    return {name for each in expressions for name in re.findall(r"\beigensweep_\w+", each)}


class TestDeploy:
    def test_the_dashboard_shows_only_what_is_exported(self):
        board = json.loads((DEPLOY / "grafana" / "eigensweep.json").read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]

        assert len(expressions) > 10
        assert named_in(expressions) - exported_names() == set()
        places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
        assert len(set(places)) == len(places)

    def test_the_dashboard_shows_every_state_that_is_not_an_end(self):
        board = json.loads((DEPLOY / "grafana" / "eigensweep.json").read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
        (states,) = [each for each in expressions if each.startswith("eigensweep_experiments{")]
        (left_out,) = re.findall(r'state!~"([^"]+)"', states)
        assert set(left_out.split("|")) == ENDED

    def test_alerts_ask_only_for_what_is_exported(self):
        rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
        alerts = [rule for group in rules["groups"] for rule in group["rules"]]

        assert {alert["alert"] for alert in alerts} >= {
            *("EigensweepNotReady", "EigensweepNothingDelivered"),
            *("EigensweepBacklogGrows", "EigensweepDiskLow"),
        }
        assert named_in([alert["expr"] for alert in alerts]) - exported_names() == set()
        assert all(alert["annotations"]["description"] for alert in alerts)

    def test_the_scrape_example_has_its_token_in_a_file(self):
        content = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        (job,) = content["scrape_configs"]

        assert (job["metrics_path"], job["authorization"]["type"]) == ("/metrics", "Bearer")
        assert "credentials_file" in job["authorization"]
        assert content["rule_files"] == ["alerts.yml"]


class _Of:
    """Collects what there is to see of some counts."""

    def __init__(self, made: Counts) -> None:
        self._made = made

    def collect(self) -> Any:
        return metrics._about_record(self._made)


@pytest.fixture
def ledger_of(client: TestClient, record: Record, spec: Any) -> Callable[[], RecordLedger]:
    def make() -> RecordLedger:
        id = client.post("/v1/experiments", json=spec()).json()["id"]
        claim = record.claim(id)
        assert claim is not None
        return RecordLedger(record.url, id, claim.generation)

    return make


def _end_trial(url: str, ledger: RecordLedger, number: int, seconds: float) -> None:
    ledger.open(number, "scornn", {"x": number}, {"replicates": 1, "seed": 0}, f"h{number}")
    ledger.finish(number, ledger.begin(number), "completed")
    moved = f"UPDATE trials SET started_at = ended_at - {seconds} WHERE number = {number}"
    database.write(url, lambda session: session.execute(text(moved)))

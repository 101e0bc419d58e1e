"""Answers about all trials of an experiment hold few of them in memory at a time."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sqlalchemy import insert, update
from starlette.testclient import TestClient

from bench.pages import make_spec, make_trials
from eigensweep.results.ranking import UNRANKED
from eigensweep.search_spaces.space import Point
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.routes import trials
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.sql import database, walks
from eigensweep.service.record.sql.tables import TrialRow
from eigensweep.service.record.views import queries

FEW, MANY, AT_ONCE = 100, 300, 25


def add_experiment(client: TestClient, url: str, number: int) -> str:
    """Return the id of an experiment of so many trials, all of which are over."""
    spec = make_spec(number)
    id: str = client.post("/v1/experiments", json=spec).json()["id"]
    config: dict[str, Any] = client.post("/v1/experiments/preview", json=spec).json()["first"][0]
    parsed, rows = ExperimentSpec(**spec), list(make_trials(id, config["config"], number))
    for row in rows:
        row["config_hash"] = parsed.trial(Point(row["arm"], row["params"])).content_hash()
    database.write(url, lambda session: session.execute(insert(TrialRow), rows))
    return id


def measure_peak(act: Callable[[], Any]) -> int:
    """Return the most bytes that Python held while something was done."""
    gc.collect()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("what", "most"), [("pareto", 1_000), pytest.param("trials.csv", 8_000, marks=pytest.mark.slow)]
)
def test_a_trial_more_costs_few_bytes(client, record, monkeypatch, what, most):
    """Its row alone takes 15,000; an export is a table, and its text, of all trials."""
    monkeypatch.setattr(queries, "READ_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(trials, "EXPORTED_AT_ONCE", AT_ONCE)
    ids = [add_experiment(client, record.url, number) for number in (FEW, MANY)]
    places = [f"/v1/experiments/{id}/{what}" for id in ids]
    client.get(places[0]).raise_for_status()  # imports what it needs
    few, many = (measure_peak(lambda at=at: client.get(at).raise_for_status()) for at in places)
    assert many - few < most * (MANY - FEW)


class TestTakenUpAgain:
    """Experiments with failed trials, one of ten, and completed ones, nine of ten."""

    @pytest.fixture
    def over(self, client, record, monkeypatch):
        """Return a function that makes an experiment of so many trials that is over."""
        monkeypatch.setattr(walks, "AT_ONCE", AT_ONCE)

        def add(number: int) -> str:
            id = add_experiment(client, record.url, number)
            claim = record.claim(id)
            ledger = RecordLedger(record.url, id, claim.generation)
            ledger.end("completed")
            ledger.set_tracked()
            return id

        return add

    @pytest.mark.slow
    def test_a_longer_budget_holds_few_bytes_of_each_trial(self, record, over):
        def extend(id: str) -> None:
            spec = ExperimentSpec.from_stored(record.row(id).spec)
            training = spec.training.model_copy(update={"steps": 40_000})
            record.extend(id, spec.model_copy(update={"training": training}))

        ids = [over(number) for number in (AT_ONCE, FEW, MANY)]
        _, few, many = (measure_peak(partial(extend, id)) for id in ids)
        assert many - few < 4_000 * (MANY - FEW)
        counts = record.experiment(ids[-1]).counts
        assert counts["waiting"].trials == MANY * 9 // 10
        assert counts["waiting"].steps == 40_000 * counts["waiting"].trials
        kinds = Counter(event.kind for event in record.events(ids[-1], limit=MANY + 9))
        assert kinds["trial.reopened"] == counts["waiting"].trials

    def test_a_cancel_holds_few_bytes_of_each_trial_that_waits(self, record, over):
        ids = [over(number) for number in (AT_ONCE, FEW, MANY)]
        for id in ids:
            record.retry(id)
            with database.engine(record.url).begin() as connection:
                waits = update(TrialRow).where(TrialRow.experiment_id == id)
                connection.execute(waits.values(state="waiting", rank=UNRANKED))
        _, few, many = (measure_peak(partial(record.cancel, id)) for id in ids)
        assert many - few < 1_000 * (MANY - FEW)
        counts = record.experiment(ids[-1]).counts
        kept = MANY // 20  # those that had failed and were to be tried again
        found = {state: count.trials for state, count in counts.items()}
        assert found == {"cancelled": MANY - kept, "failed": kept}
        kinds = [event.kind for event in record.events(ids[-1], limit=3 * MANY)]
        assert (kinds.count("trial.cancelled"), kinds.count("trial.kept")) == (MANY - kept, kept)
        assert kinds[-1] == "experiment.cancelled"

    def test_all_failed_trials_are_tried_again(self, record, over):
        id = over(MANY)
        record.retry(id)
        counts = record.experiment(id).counts
        assert (counts["waiting"].trials, counts.get("failed")) == (MANY // 20, None)

"""Answers about all trials of an experiment hold few of them in memory at a time."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from sqlalchemy import insert
from starlette.testclient import TestClient

from bench.pages import make_spec, make_trials
from eigensweep.service.api.routes import trials
from eigensweep.service.record import database, queries
from eigensweep.service.record.tables import Trial

FEW, MANY, AT_ONCE = 150, 600, 25


def measure_peak(client: TestClient, url: str, number: int, what: str) -> int:
    """Return the most bytes that Python held for an answer about an experiment of many trials."""
    spec = make_spec(number)
    id = client.post("/v1/experiments", json=spec).json()["id"]
    config: dict[str, Any] = client.post("/v1/experiments/preview", json=spec).json()["first"][0]
    rows = list(make_trials(id, config["config"], number))
    database.write(url, lambda session: session.execute(insert(Trial), rows))
    place = f"/v1/experiments/{id}/{what}"
    client.get(place).raise_for_status()  # imports what it needs
    gc.collect()
    tracemalloc.start()
    try:
        client.get(place).raise_for_status()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("what", "most"), [("pareto", 1_000), ("trials.csv", 8_000)])
def test_a_trial_more_costs_few_bytes(client, record, monkeypatch, what, most):
    """Its row alone takes 15,000; an export is a table, and its text, of all trials."""
    monkeypatch.setattr(queries, "READ_AT_ONCE", AT_ONCE)
    monkeypatch.setattr(trials, "EXPORTED_AT_ONCE", AT_ONCE)
    few, many = (measure_peak(client, record.url, number, what) for number in (FEW, MANY))
    assert many - few < most * (MANY - FEW)

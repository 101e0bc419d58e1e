"""Small experiments while MLflow hangs: few drivers, and all of it is delivered later."""

from __future__ import annotations

from typing import Any

import pytest
from grids import Grid
from waiting import wait_until

from eigensweep.protocol.states import ENDED

GRID = Grid(trials=1, steps=5, evaluate=5)
EXPERIMENTS = 6


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_that_are_over_keep_few_drivers_while_mlflow_hangs(service: Any):
    service.env |= {"EIGENSWEEP_MAX_EXPERIMENTS": "2"}
    service.start()
    (mlflow,) = service.find_part("mlflow")
    mlflow.suspend()
    posted = [
        service.post(GRID.spec(model={"name": "toy_slow", "hidden_size": 4, "seconds": n / 100}))
        for n in range(EXPERIMENTS)
    ]
    counts = []

    def are_over() -> bool:
        counts.append(len(service.find_part("driver")))
        return all(service.experiment(each["id"])["state"] in ENDED for each in posted)

    def find_words() -> list[str]:
        found = [service.experiment(each["id"])["notices"] for each in posted]
        return [notice["words"] for notices in found for notice in notices]

    wait_until(are_over, service.log.read_text)
    wait_until(lambda: len(find_words()) == EXPERIMENTS, find_words)
    assert all(words.startswith("not delivered yet: ") for words in find_words())
    assert any("MLflow does not answer since" in words for words in find_words())
    wait_until(lambda: len(service.find_part("driver")) <= 2, service.log.read_text)
    mlflow.resume()
    wait_until(
        lambda: all(service.experiment(each["id"])["delivered"] for each in posted),
        service.log.read_text,
    )
    assert find_words() == []
    assert max(counts) <= 2 + 2
    service.stop()
    service.wait_until_alone()

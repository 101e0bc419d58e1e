"""The first trials that a preview shows are those that a driver tries."""

from __future__ import annotations

from typing import Any

import pytest
from sweeps import SCORNN, Bench, spec

from eigensweep.search_spaces.checks.preview import preview
from eigensweep.search_spaces.spec import ExperimentSpec

RATES = {"optimizer.lr": [0.1, 0.01, 0.001]}
TUNED = {"model": {"name": "lstm", "hidden_size": 5}}
SPECS = {
    "a sequence over few values": spec({"method": "qmc", "trials": 3, "space": RATES}),
    "a sequence over arms, one without parameters": spec(
        {"method": "qmc", "trials": 6},
        arms=[
            {"name": "fixed", "model": SCORNN},
            {"name": "tuned", **TUNED, "space": {"optimizer.lr": {"low": 1e-3, "high": 1e-1}}},
        ],
    ),
    "a grid with points of one configuration": spec(
        {"space": {"optimizer.lr": [0.1, 0.01], "optimizer.lr_orth": [None, 0.1, 0.01]}}
    ),
    "a grid with an invalid point": spec(
        {"space": {"optimizer.clip_norm": [None, 1.0], "optimizer.clip_value": [None, 1.0]}}
    ),
    "a sample of a grid": spec(
        {"space": RATES | {"model.negative_fraction": [0.1, 0.5]}}, limits={"trials": 5}
    ),
}


@pytest.mark.parametrize("content", SPECS.values(), ids=SPECS)
def test_they_are_those_of_the_preview(tmp_path, content: dict[str, Any]) -> None:
    shown = preview(ExperimentSpec.model_validate(content)).first
    bench = Bench(tmp_path, content)
    bench.run()
    tried = {entry.number: entry for entry in bench.ledger.load()}
    assert [each.number for each in shown] == [*range(min(5, len(tried)))]
    for each in shown:
        trial = tried[each.number]
        assert (each.arm, each.params) == (trial.arm, trial.params)
        assert (each.error is None) == (trial.state != "invalid")

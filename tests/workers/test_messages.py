"""Messages survive every edge: plain data, JSON and pickle, and data that lacks younger keys."""

from __future__ import annotations

import json
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
from orders import make_order

from eigensweep.protocol.messages import EngineNeed, Order, Place, Report
from eigensweep.results.seeds import summarise
from eigensweep.results.trial_result import (
    ParameterCount,
    ReplicateResult,
    Result,
    Source,
)

REPLICATES = [
    ReplicateResult(
        seed=seed,
        outcome="completed",
        value=0.25 * seed,
        best_step=15,
        step=20,
        valid={"error": 0.25 * seed},
        test={"error": 0.5},
        seconds=1.5,
        parameters=ParameterCount(free=3, stored=4),
        baseline=5.0,
        constraint={"distance": 1e-7},
        best_test={"error": 0.5},
        last_test={"error": 0.75},
    )
    for seed in (1, 2)
]
RESULT = replace(summarise(REPLICATES), reused_from=Source("e0", 7, "run7"))
MESSAGES: list[Any] = [
    make_order(donor=Source("e0", 7), reported=5, reports=((5, 0.5),), data_root="/data"),
    make_order(),
    make_order(engine=EngineNeed(lanes=8, trials=9, cpus=2.0, gpus=1.0)),
    RESULT,
    Result(),
    Report(20, {"objective": 0.25}, "completed", RESULT, None, Place("here", 7, "cpu")),
    Report(3, outcome="failed", error="Traceback"),
    Report(3, place=Place("here", 7, "cuda:1", lanes=8), lost="the engine died"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
class TestEveryMessage:
    def test_it_comes_back_from_plain_data_with_nothing_lost(self, message):
        content = json.loads(json.dumps(message.to_dict(), allow_nan=False))
        again = type(message).from_dict(content)
        assert again.to_dict() == content == message.to_dict()

    def test_it_travels_to_another_process(self, message):
        assert pickle.loads(pickle.dumps(message)) == message

    def test_nobody_changes_it(self, message):
        with pytest.raises(FrozenInstanceError):
            message.step = 99


def test_a_replicate_leaves_to_the_trial_what_all_share():
    (first, _) = RESULT.to_dict()["by_replicate"]
    assert {"parameters", "baseline", "constraint"} & set(first) == set()
    again = Result.from_dict(RESULT.to_dict())
    assert [each.seed for each in again.by_replicate] == [1, 2]
    assert again.parameters == ParameterCount(free=3, stored=4)
    assert again.interval["value"] == RESULT.interval["value"]


def test_an_order_is_the_same_after_it_was_plain_data():
    order = make_order(reports=((5, 0.5), (10, 0.25)))
    assert Order.from_dict(order.to_dict()) == order


def test_numbers_that_were_not_finite_when_stored_are_unknown():
    stored = {"value": None, "step": 3, "valid": {"error": None, "gain": 2.0}, "seconds": None}
    assert Result.from_dict(stored) == Result(step=3, valid={"gain": 2.0})

"""An engine with the real program: its lanes are trials alone, whatever happens beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.waiting import wait_until
from orders import make_order
from test_attempt import to_the_end
from toys import to_exact

from eigensweep.protocol.messages import Order, Report
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.checkpoints import Store
from eigensweep.training.attempt import Attempt
from eigensweep.training.lanes.engine.engine import Engine

SIZES = {"train_size": None, "valid_size": 50, "test_size": 50}


def order(folder, number, *, experiment="e1", steps=60, lr=1e-3, seed=0, **config) -> Order:
    content = {
        "task": {"name": "copying", "delay": 5, "symbols": 3, "batch_size": 4, **SIZES},
        "model": {"name": "scornn", "hidden_size": 12, "negative_ones": 3},
        "optimizer": {"lr": lr, "name": "rmsprop"},
        "training": {"steps": steps, "evaluate_every": 20, "log_every": 5},
        "seed": seed,
        **config,
    }
    parsed = TrialConfig.from_dict(content).resolve()
    return make_order(
        experiment=experiment,
        number=number,
        config=parsed.model_dump(mode="json"),
        rungs=(*range(20, steps, 20), steps),
        storage=str(folder),
        checkpoint_seconds=0.0,  # commits as often as it looks
    )


def reports_of(engine: Engine, order: Order) -> list[Report]:
    reports = [next_report(engine, order)]
    while reports[-1].outcome is None:
        reports.append(next_report(engine, order))
    return reports


def next_report(engine: Engine, order: Order) -> Report:
    while (report := engine.ask(order, 0.5)) is None:
        pass
    return report


def train(lanes: int, *orders: Order) -> list[list[Report]]:
    """Train trials in a new engine, each with a caller of its own."""
    engine = Engine("cpu", lanes)
    try:
        with ThreadPoolExecutor(len(orders)) as callers:
            return list(callers.map(lambda each: reports_of(engine, each), orders))
    finally:
        engine.stop()


def curve(folder, key):
    return {point.step: point.metrics for point in Store(folder).points(key)}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for step, metrics in expected.items():
        assert found[step] == pytest.approx(metrics, rel=1e-3, abs=1e-5)


class TestLanesAreTrialsAlone:
    def test_reports_and_curves_are_those_of_a_process_alone(self, tmp_path):
        orders = [
            order(tmp_path / "engine", 0),
            order(tmp_path / "engine", 1, lr=1e-2, seed=5),
            order(tmp_path / "engine", 2, replicates=2, seed=7),
            order(tmp_path / "engine", 3, model={"name": "lstm", "hidden_size": 6}),
        ]
        told = train(3, *orders)
        for each, reports in zip(orders, told, strict=True):
            alone = to_the_end(Attempt(replace(each, storage=str(tmp_path / "alone")), "cpu"))
            assert [(r.step, r.outcome) for r in reports] == [(r.step, r.outcome) for r in alone]
            for one, other in zip(reports, alone, strict=True):
                assert one.metrics == pytest.approx(other.metrics, rel=1e-3, abs=1e-5)
            for result in alone[-1].result.by_replicate:
                key = f"e1/{each.number:05d}/{result.seed}"
                assert_close(curve(tmp_path / "engine", key), curve(tmp_path / "alone", key))

    @pytest.mark.slow  # test_lanes.py has the same of lanes without an engine
    def test_an_experiment_notices_no_bit_of_another_in_its_engine(self, tmp_path):
        """The other one diverges, leaves and is refilled; the bits of the curve stay."""
        quiet = order(tmp_path / "quiet", 0, steps=80)
        train(3, quiet)

        engine, shared = Engine("cpu", 3), replace(quiet, storage=str(tmp_path / "shared"))
        others = [
            order(tmp_path / "shared", n, experiment="e2", lr=lr, seed=n, steps=1000)
            for n, lr in enumerate([1e-2, 50.0, 3e-3, 1e-4])
        ]
        with ThreadPoolExecutor(5) as callers:
            mine = callers.submit(reports_of, engine, shared)
            for other in others:
                callers.submit(next_report, engine, other).result()
                engine.leave(other)
            assert mine.result()[-1].outcome == "completed"
        engine.stop()
        states = [Store(tmp_path / name).newest("e1/00000/0").state for name in ("quiet", "shared")]
        assert to_exact(states[0]) == to_exact(states[1])
        curves = [curve(tmp_path / name, "e1/00000/0") for name in ("quiet", "shared")]
        assert curves[0] == curves[1]


CHILD = """
import json, sys
from test_engine_lanes import Order, train
train(2, *(Order.from_dict(content) for content in json.load(sys.stdin)))
"""


@pytest.mark.slow  # test_checkpoints.py kills at random moments, without an engine
class TestAKilledEngine:
    def test_it_loses_no_trial_and_what_it_trained_is_gone_on_from(self, tmp_path):
        orders = [
            order(tmp_path / "killed", 0, steps=160),
            order(tmp_path / "killed", 1, steps=160, seed=3, replicates=2),
            order(tmp_path / "killed", 2, steps=160, seed=3, experiment="e2"),
        ]
        keys = {"e1/00000/0": 0, "e1/00001/3": 1, "e1/00001/4": 1, "e2/00002/3": 2}
        store = Store(tmp_path / "killed")
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            text=True,
        )
        child.stdin.write(json.dumps([each.to_dict() for each in orders]))
        child.stdin.close()
        try:
            wait_until(lambda: len(store.points("e1/00000/0")) > 5, pause=0.01)
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait()
        reached = [snapshot.step if (snapshot := store.newest(k)) else 0 for k in keys]
        assert max(reached) > 0
        assert min(reached) < 160

        rest = train(2, *(replace(each, attempt=2) for each in orders))

        whole = train(2, *(replace(each, storage=str(tmp_path / "whole")) for each in orders))
        for one, other in zip(rest, whole, strict=True):
            assert (one[-1].step, one[-1].outcome) == (160, "completed")
            assert one[-1].metrics == pytest.approx(other[-1].metrics, rel=1e-3, abs=1e-5)
        for key in keys:
            points = store.points(key)
            assert [p.step for p in points] == list(range(0, 161, 5))
            assert_close(curve(tmp_path / "killed", key), curve(tmp_path / "whole", key))

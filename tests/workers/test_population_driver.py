"""Population-based training on a real Ray: rounds, copies and curves, and what a kill changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from experiments import Cluster, Launched, toys_on_path, wait_for
from sweeps import COPYING, SCORNN

from eigensweep.store.checkpoints import Store
from eigensweep.workers.driver.experiment import run_experiment

RATES = [1e-1, 1e-2, 1e-4, 1e-6]
SPEC: dict[str, Any] = {
    "task": COPYING,
    "model": SCORNN,
    "search": {"space": {"optimizer.lr": RATES}},
    "scheduler": {"name": "pbt", "rung_every": 5, "margin": None, "quantile": 0.25},
    "training": {"steps": 20, "evaluate_every": 5, "log_every": 5},
}
SLOW = {"name": "toy_slow", "hidden_size": 4, "seconds": 0.01}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with toys_on_path():
        started = Cluster.start(num_cpus=2)
        yield started
        started.stop()


@pytest.fixture
def experiment(cluster: Cluster, tmp_path: Path) -> Callable[..., Launched]:
    def make(id: str, **changes: Any) -> Launched:
        (tmp_path / id).mkdir()
        return Launched(cluster, tmp_path / id, id, {**SPEC, **changes})

    return make


def curve(e: Launched, number: int) -> list[tuple[int, dict[str, float]]]:
    points = Store(e.folder / "store").points(f"{e.id}/{number:05d}/0")
    return [(point.step, point.metrics) for point in points]


def check_rounds(e: Launched) -> None:
    """Check that each replaced trial went on as recorded, and each other one as if alone."""
    trials = e.trials()
    assert [t.state for t in trials] == ["completed"] * 4
    ends = [step for kind, step, _ in (h for h in e.ledger.read("history") if h[0] == "round")]
    assert ends == sorted(set(ends)) == [5, 10, 15]
    for trial in trials:
        points = dict(curve(e, trial.number))
        shown = {step: m["param/optimizer.lr"] for step, m in points.items() if step % 5 == 0}
        expected, rate = {}, trial.params["optimizer.lr"]
        for step in range(0, 21, 5):
            expected[step] = rate
            changes = [t.params["optimizer.lr"] for t in trial.lineage if t.step == step]
            rate = changes[0] if changes else rate
        assert shown == expected
        assert trial.result.step == 20


def test_four_trials_are_replaced_in_three_rounds(experiment):
    e = experiment("pbt")
    run_experiment(e.id, e.spec, e.ledger, e.options())
    check_rounds(e)
    trials = e.trials()
    replaced = {t.number: t.lineage for t in trials if t.lineage}
    assert sum(map(len, replaced.values())) == 3
    first = next(each for lineage in replaced.values() for each in lineage if each.step == 5)
    scores = {t.number: t.reports[5]["valid/cross_entropy"] for t in trials}
    worst = next(n for n, lineage in replaced.items() if first in lineage)
    assert (min(scores, key=scores.get), max(scores, key=scores.get)) == (first.source, worst)

    constant = next(t for t in trials if not t.lineage)
    rate = constant.params["optimizer.lr"]
    search = {"space": {"optimizer.lr": [rate]}}
    alone = experiment("alone", search=search, scheduler={"name": "none"})
    run_experiment(alone.id, alone.spec, alone.ledger, alone.options())
    (same,) = alone.trials()
    assert same.result.value == constant.result.value
    without = [
        (step, {name: value for name, value in metrics.items() if not name.startswith("param/")})
        for step, metrics in curve(e, constant.number)
    ]
    assert without == curve(alone, 0)


@pytest.mark.slow  # test_population.py kills at every place, without Ray
def test_a_killed_driver_has_a_successor_that_decides_the_same(experiment):
    whole, killed = experiment("whole", model=SLOW), experiment("killed", model=SLOW)
    whole.run()
    handle = killed.launch()
    killed.until(lambda: killed.ledger.read("round") >= 5)
    handle.kill()
    assert wait_for(handle) == "died"
    assert killed.ledger.read("round") < 15
    killed.run()
    for e in (whole, killed):
        check_rounds(e)
    assert [t.lineage for t in killed.trials()] == [t.lineage for t in whole.trials()]
    assert [t.result.value for t in killed.trials()] == [t.result.value for t in whole.trials()]
    for number in range(4):
        assert curve(killed, number) == curve(whole, number)


@pytest.mark.slow
def test_one_slot_is_enough(experiment):
    e = experiment("narrow", limits={"concurrency": 1})
    run_experiment(e.id, e.spec, e.ledger, e.options())
    check_rounds(e)

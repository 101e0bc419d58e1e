"""The report of an experiment that is over, and its plots."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, distribution_to_json

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import Takeover
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.summary.plots import MOST_LABELS, ArmOrder, draw
from eigensweep.workers.driver.summary.report import PLOTS, write_report

SPEC = ExperimentSpec.model_validate(
    {
        "name": "two arms",
        "task": {"name": "copying", "delay": 5},
        "arms": [
            {"model": {"name": "scornn", "hidden_size": 8, "negative_ones": 4}},
            {"model": {"name": "lstm", "hidden_size": 6}},
            {"name": "none", "model": {"name": "lstm", "hidden_size": 7}},
        ],
        "search": {
            "method": "random",
            "trials": 8,
            "space": {
                "optimizer.lr": {"low": 1e-4, "high": 1e-1, "log": True},
                "optimizer.name": ["adam", "rmsprop"],
            },
        },
        "training": {"steps": 20},
    }
)


def make_entry(number: int, arm: str, value: float | None, **fields: Any) -> TrialEntry:
    params = {"optimizer.lr": 10 ** -(1 + number % 3), "optimizer.name": "adam"}
    seeds = () if value is None else (value - 0.1, value + 0.1)
    by_replicate = tuple(ReplicateResult(seed=n, value=v) for n, v in enumerate(seeds))
    result = Result(value=value, by_replicate=by_replicate, test={"accuracy": 0.5})
    known: dict[str, Any] = {"config": {}, "config_hash": "", "state": "completed"}
    return TrialEntry(number, arm, params, **{**known, "result": result, **fields})


def test_it_has_each_arms_best_trial_and_the_searchs_plots(tmp_path):
    entries = [make_entry(n, "scornn", 0.9 - n / 10) for n in range(4)]
    entries += [make_entry(n, "lstm", 0.3 + n / 100) for n in range(4, 7)]
    entries.append(make_entry(7, "none", None, state="diverged"))
    written = write_report(tmp_path / "report", SPEC, entries, "completed")
    assert list(written.texts) == ["report.json", "report.md"]
    assert [path.name for path in written.draw()] == [
        "history.png",
        "importance-lstm.png",
        "importance-scornn.png",
        "parallel-lstm.png",
        "parallel-scornn.png",
        "slice-lstm.png",
        "slice-scornn.png",
    ]
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert [(row["arm"], row["best_trial"]) for row in report["arms"]] == [
        ("lstm", 4),
        ("scornn", 3),
        ("none", None),
    ]
    summary = report["arms"][0]["statistics"]["value"]
    assert (summary["n"], round(summary["low"], 3), round(summary["high"], 3)) == (2, -0.931, 1.611)
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| lstm | lr=0.01 optimizer=adam | 2 | 0.34 | 0.1414 | -0.9306 to 1.611 |" in text
    assert "| none | - | 0 | - | - | - | - | 1 diverged |" in text


@pytest.mark.slow  # it guards a start's speed, and no result
def test_the_program_that_draws_does_not_wait_for_pytorch():
    program = f"import sys, {PLOTS}; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "False\n"


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_no_axis_has_too_many_labels_and_each_is_in_its_place(tmp_path, monkeypatch):
    from matplotlib import pyplot

    names = [f"value-{n}" for n in range(100)]
    arm: ArmOrder = {
        "distributions": {"kind": distribution_to_json(CategoricalDistribution(names))},
        "params": [{"kind": name} for name in names],
        "values": [float(n) for n in range(100)],
    }
    monkeypatch.setattr(pyplot, "close", lambda which: None)
    draw(tmp_path, {"metric": "loss", "direction": "minimize", "arms": {"a": arm}})
    labels = []
    for number in pyplot.get_fignums():
        for axes in pyplot.figure(number).axes:
            for axis in (axes.xaxis, axes.yaxis):
                labels.append([each.get_text() for each in axis.get_ticklabels()])
    monkeypatch.undo()
    pyplot.close("all")
    assert max(map(len, labels)) <= MOST_LABELS
    words = [",".join(each) for each in labels]
    assert sum("value-0,value-5,value-10," in each.replace("'", "") for each in words) == 2


def test_a_population_has_lineages_and_plots_no_changed_trial(tmp_path):
    lineage = (Takeover(10, 1, {"optimizer.lr": 0.02, "optimizer.name": "adam"}, "h"),)
    entries = [make_entry(0, "scornn", 0.1, lineage=lineage), make_entry(1, "scornn", 0.2)]
    written = write_report(tmp_path / "report", SPEC, entries, "completed")
    assert list(written.texts) == ["report.json", "report.md", "lineage.md"]
    assert written.draw() == [], "one trial alone makes no plot"
    text = (tmp_path / "report" / "lineage.md").read_text()
    assert "| 0 | 0 | - | lr=0.1 optimizer=adam |\n| 0 | 10 | 1 | lr=0.02 optimizer=adam |" in text
    assert "lr=0.1 optimizer=adam at first (lineage.md)" in written.texts["report.md"]


def test_an_empty_report_is_made_and_a_refusing_disk_harms_none(
    tmp_path,
):
    written = write_report(tmp_path / "report", SPEC, [], "cancelled")
    assert list(written.texts) == ["report.json", "report.md"]
    assert written.draw() == []
    (tmp_path / "file").touch()
    refused = write_report(tmp_path / "file" / "report", SPEC, [], "completed")
    assert refused.texts == {}
    assert refused.draw() == []

"""The report of an experiment that is over: its results by arm, for people and for programs.

It is made when the training has ended and goes to the experiment's own run in MLflow. The plots
follow after the run is closed: they take longer than everything else at the end.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from optuna.distributions import distribution_to_json

from eigensweep.direction import Better
from eigensweep.results.racing import find_race
from eigensweep.results.ranking import RANKED, find_best, rank
from eigensweep.results.trial_result import Metrics, Result
from eigensweep.search_spaces.labels import (
    describe_settings,
    format_share,
    format_value,
    shorten_paths,
)
from eigensweep.search_spaces.space import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.driver.study import DIRECTIONS, make_distribution
from eigensweep.workers.shared.ledger import TrialEntry
from eigensweep.workers.shared.messages import Params
from eigensweep.workers.shared.states import ExperimentEnd

if TYPE_CHECKING:
    from eigensweep.workers.driver.plots import PlotOrder

logger = logging.getLogger(__name__)

PLOTS = "eigensweep.workers.driver.plots"
"""The program that draws the plots. A driver does not import it: matplotlib starts slowly."""

DRAWING_SECONDS = 300.0
"""How long that program may take."""

LAST = (1, 0.0, 0)
"""Place of an arm without a ranked trial: after all others."""

COLUMNS = ("arm", "best settings", "n", "mean", "sd", "95% interval", "of the baseline", "trials")


@dataclass(frozen=True)
class WrittenReport:
    """A written report: its texts, and its plots, which take seconds to draw."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """By the name of the file."""
    folder: Path | None = None
    order: str | None = None
    """What the plots show, as JSON; None if there is nothing to draw."""

    def draw(self) -> list[Path]:
        """Draw the plots in a process of their own; return their files.

        If that process fails, there are no plots.
        """
        if self.folder is None or self.order is None:
            return []
        _draw(self.folder, self.order)
        return sorted(self.folder.glob("*.png"))


def write_report(
    folder: Path, spec: ExperimentSpec, entries: Iterable[TrialEntry], state: ExperimentEnd
) -> WrittenReport:
    """Write `report.json` and `report.md` into a folder; the plots are not drawn yet.

    No experiment waits for a report: if the disk refuses it, there is none.
    """
    try:
        return _write(folder, spec, entries, state)
    except OSError as error:
        logger.warning("no report: %s", error)
        return WrittenReport()


def _write(
    folder: Path, spec: ExperimentSpec, entries: Iterable[TrialEntry], state: ExperimentEnd
) -> WrittenReport:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    drawn = _Drawn(spec)
    population: list[TrialEntry] = []

    def look_on() -> Iterator[TrialEntry]:
        for e in entries:
            if e.lineage or spec.scheduler.name == "pbt":
                population.append(e)
            if e.state in RANKED and e.result and e.result.value is not None and not e.lineage:
                drawn.add(e.arm, e.params, e.result.value)
            yield e

    report = make_report(spec, look_on(), state)
    texts = {"report.json": json.dumps(report, indent=2), "report.md": format_report(report)}
    if any(trial.lineage for trial in population):
        texts["lineage.md"] = format_lineages(population)
    for name, text in texts.items():
        (folder / name).write_text(text)
    order = json.dumps(drawn.order) if drawn.count > 1 else None
    return WrittenReport(texts, folder, order)


class _Drawn:
    """Collects what the plots show."""

    def __init__(self, spec: ExperimentSpec) -> None:
        metric, space = spec.objective_metric, spec.space()
        self.count = 0
        self._labels = {arm: shorten_paths(space.axes(arm)) for arm in space.arms}
        self.order: PlotOrder = {
            "metric": metric.name,
            "direction": DIRECTIONS[metric.better],
            "arms": {
                arm: {
                    "distributions": {
                        labels[path]: distribution_to_json(make_distribution(axis))
                        for path, axis in space.axes(arm).items()
                    },
                    "params": [],
                    "values": [],
                }
                for arm, labels in self._labels.items()
            },
        }

    def add(self, arm: str, params: Mapping[str, Scalar], value: float) -> None:
        self.count += 1
        labels, drawn = self._labels[arm], self.order["arms"][arm]
        drawn["params"].append({labels[path]: setting for path, setting in params.items()})
        drawn["values"].append(value)


def _draw(folder: Path, order: str) -> None:
    command = [sys.executable, "-m", PLOTS, str(folder)]
    try:
        done = subprocess.run(
            command, input=order, text=True, capture_output=True, timeout=DRAWING_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        logger.warning("no plots: %s", error)
        return
    if done.returncode:
        logger.warning("no plots: %s", done.stderr[-2000:])


class MetricReport(TypedDict):
    """What trials are ranked by."""

    name: str
    unit: str
    better: Better


class ArmReport(TypedDict):
    """An arm with its best trial; None or empty where there is none."""

    arm: str
    trials: dict[str, int]
    best_trial: int | None
    params: Params
    value: float | None
    statistics: dict[str, dict[str, Any]]
    test: Metrics
    rank: int
    baseline_ratio: float | None
    lineage: NotRequired[list[dict[str, object]]]


class ExperimentReport(TypedDict):
    """The report of an experiment, as `report.json` has it."""

    name: str
    state: ExperimentEnd
    metric: MetricReport
    baseline: float | None
    race: str | None
    arms: list[ArmReport]


def make_report(
    spec: ExperimentSpec, entries: Iterable[TrialEntry], state: ExperimentEnd
) -> ExperimentReport:
    """Return the best trial of each arm with mean, n, spread and interval, best arm first."""
    metric = spec.objective_metric
    states: dict[str, Counter[str]] = {arm: Counter() for arm in spec.space().arms}
    best: dict[str, TrialEntry] = {}
    racers = []
    for entry in entries:
        states[entry.arm][entry.state] += 1
        leader = find_best(filter(None, (best.get(entry.arm), entry)), metric.better)
        if leader is not None:
            best[entry.arm] = leader
        if spec.racing is not None:
            racers.append(entry)
    keys = {arm: rank(trial, metric.better) for arm, trial in best.items()}
    order = sorted(states, key=lambda arm: (keys.get(arm) or LAST)[:2])
    race = find_race(spec, racers)
    return {
        "name": spec.name,
        "state": state,
        "metric": {"name": metric.name, "unit": metric.unit, "better": metric.better},
        "baseline": spec.baseline,
        "race": None if race is None else race.words,
        "arms": [
            _describe_arm(arm, states[arm], best.get(arm), place, spec.baseline)
            for place, arm in enumerate(order, 1)
        ],
    }


def _describe_arm(
    arm: str, states: Counter[str], best: TrialEntry | None, place: int, baseline: float | None
) -> ArmReport:
    result = Result() if best is None or best.result is None else best.result
    row: ArmReport = {
        "arm": arm,
        "trials": dict(states),
        "best_trial": None if best is None else best.number,
        "params": {} if best is None else best.params,
        "value": result.value,
        "statistics": {name: found.to_dict() for name, found in result.statistics.items()},
        "test": dict(result.test),
        "rank": place,
        "baseline_ratio": _ratio(result.value, baseline),
    }
    if best is not None and best.lineage:
        row["lineage"] = [taken.to_dict() for taken in best.lineage]
    return row


def _ratio(value: float | None, baseline: float | None) -> float | None:
    return value / baseline if value is not None and baseline else None


def format_report(report: ExperimentReport) -> str:
    """Return the report as Markdown."""
    metric = report["metric"]
    lines = [
        f"# {report['name']}",
        "",
        f"{report['state']}. Validation {metric['name']} in {metric['unit']}, "
        f"{metric['better']} is better; baseline {_show(report['baseline'])}.",
        "",
        "The best trial of each arm. The interval is that of the mean over its replicates.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        f"|{' --- |' * len(COLUMNS)}",
    ]
    if report["race"] is not None:
        lines[-3:-3] = ["", f"The race for more seeds: {report['race']}."]
    for row in report["arms"]:
        value = row["statistics"].get("value", {})
        ends = [_show(value.get(end)) for end in ("low", "high")]
        cells = [
            row["arm"],
            _describe_params(row),
            str(value.get("n", 1 if row["value"] is not None else 0)),
            _show(row["value"]),
            _show(value.get("sd")),
            "-" if value.get("low") is None else " to ".join(ends),
            "-" if row["baseline_ratio"] is None else format_share(row["baseline_ratio"]),
            ", ".join(f"{n} {state}" for state, n in sorted(row["trials"].items())) or "-",
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join([*lines, ""])


def _describe_params(row: ArmReport) -> str:
    words = describe_settings(row["params"]) or "-"
    return f"{words} at first (lineage.md)" if row.get("lineage") else words


def format_lineages(trials: Iterable[TrialEntry]) -> str:
    """Return what population-based training made of each trial, step by step, as Markdown."""
    lines = [
        "# Lineages",
        "",
        "Each trial with the values that it began with. At a step it may have taken over the "
        "weights and the optimizer state of another trial, and went on with other values.",
        "",
        "| trial | step | from trial | values from there on |",
        "| --- | --- | --- | --- |",
    ]
    for trial in trials:
        lines.append(f"| {trial.number} | 0 | - | {describe_settings(trial.params) or '-'} |")
        for taken in trial.lineage:
            words = describe_settings(taken.params)
            lines.append(f"| {trial.number} | {taken.step} | {taken.source} | {words} |")
    return "\n".join([*lines, ""])


def _show(value: float | None) -> str:
    return "-" if value is None else format_value(value)

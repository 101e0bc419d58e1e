"""The report of an experiment that is over: its results by arm, for people and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict

from eigensweep.common.direction import Better
from eigensweep.results.racing import find_race
from eigensweep.results.ranking import Ranked, find_best, rank
from eigensweep.results.trial_result import Metrics, Result, find_ratio
from eigensweep.search_spaces.labels import describe_settings, format_share, format_value
from eigensweep.search_spaces.parameters import Scalar

if TYPE_CHECKING:
    from eigensweep.search_spaces.spec import ExperimentSpec

LAST = (1, 0.0, 0)
"""Place of an arm without a ranked trial: after all others."""

COLUMNS = ("arm", "best settings", "n", "mean", "sd", "95% interval", "of the baseline", "trials")


class Taken(Protocol):
    """A takeover of population-based training, as this room sees it."""

    @property
    def step(self) -> int: ...
    @property
    def source(self) -> int: ...
    @property
    def params(self) -> Mapping[str, Scalar]: ...
    def to_dict(self) -> dict[str, object]: ...


class Reported(Ranked, Protocol):
    """A trial, as a report sees it."""

    @property
    def params(self) -> Mapping[str, Scalar]: ...
    @property
    def lineage(self) -> Sequence[Taken]: ...


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
    params: Mapping[str, Scalar]
    value: float | None
    statistics: dict[str, dict[str, Any]]
    test: Metrics
    rank: int
    baseline_ratio: float | None
    lineage: NotRequired[list[dict[str, object]]]


class ExperimentReport(TypedDict):
    """The report of an experiment, as `report.json` has it."""

    name: str
    state: str
    metric: MetricReport
    baseline: float | None
    race: str | None
    arms: list[ArmReport]


def make_report(spec: ExperimentSpec, entries: Iterable[Reported], state: str) -> ExperimentReport:
    """Return the best trial of each arm with mean, n, spread and interval, best arm first."""
    metric = spec.objective_metric
    states: dict[str, Counter[str]] = {arm: Counter() for arm in spec.space().arms}
    best: dict[str, Reported] = {}
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
    arm: str, states: Counter[str], best: Reported | None, place: int, baseline: float | None
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
        "baseline_ratio": find_ratio(result.value, baseline),
    }
    if best is not None and best.lineage:
        row["lineage"] = [taken.to_dict() for taken in best.lineage]
    return row


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


def format_lineages(trials: Iterable[Reported]) -> str:
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

"""Compares arms at equal tuning effort, from the record alone.

Runs in the service's process.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from pydantic import Field

from eigensweep.direction import sign
from eigensweep.search_spaces.labels import format_value, say_count
from eigensweep.search_spaces.sections import LEARNING
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.comparison import (
    TRAINING_ONLY,
    check_arm,
    find_metric,
    is_number,
    list_differing,
)
from eigensweep.service.api.schemas import AnswerModel, Metric
from eigensweep.service.record.overviews import TryRecord, list_tries
from eigensweep.service.record.queries import Queries
from eigensweep.workers.shared.effort import (
    Estimate,
    Search,
    choose_counts,
    compare_best,
    judge,
)
from eigensweep.workers.shared.states import RANKED
from eigensweep.workers.shared.statistics import Verdict, find_domain

METHOD = (
    "mean test value of the trial with the best validation value among k, without bias; "
    "95% band of each number of trials alone, for any distribution"
)


class EffortPoint(AnswerModel):
    """What the best of so many trials comes to on test data."""

    trials: int
    core_hours: float = Field(description="What so many trials cost on average")
    gpu_hours: float
    mean: float
    low: float = Field(description="Lower end of the 95% band")
    high: float = Field(description="Upper end of the same")


class EffortSide(AnswerModel):
    """The search that a name stands for."""

    name: str
    experiment_name: str
    reason: str | None = Field(description="Why it has no curve; null where it has one")
    method: str = Field(description="How its trials were chosen")
    trials: int = Field(description="Trials that count, n")
    diverged: int = Field(description="Those among them that diverged: they have the worst value")
    pruned: int = Field(
        description="Those among them that a scheduler stopped: they are chosen after all that "
        "were trained to an end, and have the validation value where they were stopped"
    )
    left_out: int = Field(description="Trials that failed, were cancelled, or have not ended")
    core_hours: float = Field(description="What a trial cost on average")
    gpu_hours: float
    points: list[EffortPoint]
    words: str = Field(description="What was counted, as a sentence")


class EffortPair(AnswerModel):
    """Two searches at equal effort; first minus second."""

    first: str
    second: str
    equal: str = Field(description="What is equal: `trials`, `core hours` or `GPU hours`")
    hours: float | None = Field(description="How many hours each; null where trials are equal")
    first_trials: int
    second_trials: int
    mean: float = Field(description="Mean of first minus second")
    low: float = Field(description="Lower end of its 95% interval")
    high: float
    verdict: Verdict = Field(description="Of the first side")
    words: str = Field(description="All of it as a sentence")


class Effort(AnswerModel):
    """Arms and experiments at equal tuning effort."""

    method: str
    version: str = Field(description="Version of Eigensweep that compared")
    metric: Metric | None = Field(description="What is reported; null if no side has a curve")
    reason: str | None = Field(description="Why sides are not compared; null where they are")
    sides: list[EffortSide]
    pairs: list[EffortPair]


@dataclass(frozen=True)
class _Found:
    side: EffortSide
    metric: Metric
    task: dict[str, object]
    baseline: float | None
    valid: list[float]
    """Lower is better; infinite for what was not trained to an end."""
    test: list[float | None]
    """None: the worst value."""


def measure_effort(
    record: Queries, names: Sequence[str], metric: str | None, version: str
) -> Effort:
    """Return the mean best test value against the number of trials, for each search of `names`.

    A name is EXPERIMENT/ARM for the trials of an arm, or EXPERIMENT for all of it. A single trial,
    EXPERIMENT/NUMBER, is no search, and has a reason in place of a curve.

    Raises:
        NotFoundError: if there is no such experiment or arm.
        UnknownMetricError: if the task has no such metric.
    """
    found = [_find(record, name, metric) for name in names]
    able = [each for each in found if each.side.reason is None]
    reason = _find_obstacle(able)
    metric_words = able[0].metric if able else None
    searches: dict[str, Search] = {}
    if reason is None and able:
        ends = _find_ends(able)
        searches = {
            each.side.name: _make_search(each, *ends, seed) for seed, each in enumerate(able)
        }
    fewest = min((each.side.trials for each in able), default=0)
    sides = [_draw(each, searches.get(each.side.name), fewest) for each in found]
    pairs: list[EffortPair] = []
    for a, b in combinations([each for each in able if each.side.name in searches], 2):
        pairs += _compare(a, searches[a.side.name], b, searches[b.side.name])
    return Effort(
        method=METHOD,
        version=version,
        metric=metric_words,
        reason=reason,
        sides=sides,
        pairs=pairs,
    )


def write_csv(effort: Effort) -> str:
    """Return the points of all curves as a table."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["name", *EffortPoint.model_fields])
    for side in effort.sides:
        rows.writerows([side.name, *point.model_dump().values()] for point in side.points)
    return text.getvalue()


def _find(record: Queries, name: str, metric: str | None) -> _Found:
    id, _, part = name.partition("/")
    experiment = record.row(id)
    task = dict(experiment.spec["task"])
    measured, baseline = find_metric(experiment, task, metric)
    spec = ExperimentSpec.from_stored(experiment.spec)
    tries: list[TryRecord] = []
    reason = "it is one trial, not a search"
    if not is_number(part):
        check_arm(experiment, part or None)
        tries = list_tries(record, id, part or None)
        reason = _refuse(tries, measured.name) or _find_varied_task(spec, part)
    counted = [each for each in tries if each.state in (*RANKED, "diverged", "pruned")]
    n = len(counted)
    cores, gpus = spec.resources.cpus, spec.resources.gpus
    cpu = sum(each.cpu_seconds or each.training_seconds * cores for each in counted)
    gpu = sum(each.gpu_seconds or each.training_seconds * gpus for each in counted)
    side = EffortSide(
        name=name,
        experiment_name=experiment.name,
        reason=reason or None,
        method=spec.search.method,
        trials=n,
        diverged=sum(each.state == "diverged" for each in counted),
        pruned=sum(each.state == "pruned" for each in counted),
        left_out=len(tries) - n,
        core_hours=cpu / 3600 / n if n else 0.0,
        gpu_hours=gpu / 3600 / n if n else 0.0,
        points=[],
        words="",
    )
    side = side.model_copy(update={"words": _describe(side)})
    by, is_own = sign(experiment.better), measured.name == experiment.metric
    valid, test = [], []
    for each in counted:
        has_ended = each.state in RANKED and each.value is not None
        valid.append(by * each.value if has_ended and each.value is not None else float("inf"))
        stand_in = each.value if each.state == "pruned" and is_own else None
        test.append(each.test.get(measured.name) if has_ended else stand_in)
    return _Found(side, measured, task, baseline, valid, test)


def _describe(side: EffortSide) -> str:
    """Return what was counted of a search as a sentence."""
    if side.reason:
        return f"{side.name} has no curve: {side.reason}"
    words = f"{side.name}: {say_count(side.trials, 'trial')} by {side.method} search"
    if side.diverged:
        words += f", {side.diverged} of them diverged, with the worst value"
    if side.pruned:
        words += f", {side.pruned} of them pruned, chosen last"
    if side.left_out:
        words += f"; {side.left_out} more failed, were cancelled or are not over"
    if side.method in LEARNING:
        words += ". Later trials were chosen by earlier ones; the curve takes them in any order"
    return words


def _refuse(tries: Sequence[TryRecord], metric: str) -> str:
    """Return why there is no curve of these trials, "" where there is one."""
    if any(each.is_of_many for each in tries):
        return "its trials went on from one another (population-based training)"
    ranked = [each for each in tries if each.state in RANKED]
    if not ranked:
        return "no trial of it was trained to an end"
    if any(metric not in each.test for each in ranked):
        return f"not all of its trials have {metric} on test data"
    return ""


def _find_varied_task(spec: ExperimentSpec, arm: str) -> str:
    """Return what of the task a search varies, in words, as such values do not compare."""
    spaces = [each.space for each in spec.arms_ if arm in ("", each.label)]
    kept = {f"task.{name}" for name in TRAINING_ONLY}
    varied = {path for space in spaces for path in space if path.startswith("task.")} - kept
    return f"its trials differ in {', '.join(sorted(varied))}" if varied else ""


def _find_obstacle(found: Sequence[_Found]) -> str | None:
    for a, b in combinations(found, 2):
        if differing := list_differing(a.task, b.task):
            return f"the tasks of {a.side.name} and {b.side.name} differ in {', '.join(differing)}"
        if a.metric != b.metric:
            return (
                f"{a.side.name} is ranked by {a.metric.name} and {b.side.name} by "
                f"{b.metric.name}; name one metric for both"
            )
    return None


def _find_ends(found: Sequence[_Found]) -> tuple[float, float]:
    """Return the best that the metric can be, and the worst that it is taken for.

    The worst is that of remembering nothing, or the worst one seen. A metric without a bound is
    taken to be never better than the best one seen.
    """
    metric = found[0].metric
    by = sign(metric.better)
    seen = [by * value for each in found for value in each.test if value is not None]
    worst = max([*seen, *(by * each.baseline for each in found if each.baseline is not None)])
    bound = {
        ("positive", "lower"): 0.0,
        ("fraction", "lower"): 0.0,
        ("fraction", "higher"): -1.0,
    }.get((find_domain(metric.name), metric.better), min(seen))
    return min(bound, *seen), worst


def _make_search(found: _Found, best: float, worst: float, seed: int) -> Search:
    by = sign(found.metric.better)
    test = [worst if value is None else by * value for value in found.test]
    return Search(found.valid, test, best, worst, seed)


def _draw(found: _Found, search: Search | None, fewest: int) -> EffortSide:
    if search is None:
        return found.side
    side, points = found.side, []
    for k in sorted({*choose_counts(search.n), fewest}):
        seen = _turn(search.estimate(k), found.metric)
        points.append(
            EffortPoint.made_of(
                seen,
                trials=k,
                core_hours=k * side.core_hours,
                gpu_hours=k * side.gpu_hours,
            )
        )
    return side.model_copy(update={"points": points})


def _turn(found: Estimate, metric: Metric) -> Estimate:
    """Return an estimate in the metric's own direction."""
    if metric.better == "lower":
        return found
    return Estimate(-found.mean, -found.high, -found.low)


def _compare(a: _Found, first: Search, b: _Found, second: Search) -> list[EffortPair]:
    """Return the comparison at equal trials, and at equal hours where those are known."""
    k = min(first.n, second.n)
    pairs = [_pair(a, first, k, b, second, k, "trials", None)]
    unit = "gpu_hours" if a.side.gpu_hours and b.side.gpu_hours else "core_hours"
    costs = getattr(a.side, unit), getattr(b.side, unit)
    if min(costs) > 0:
        hours = min(first.n * costs[0], second.n * costs[1])
        # a hair more, as n * (hours / n) may be less than hours
        counts = [
            min(s.n, int(hours / c * (1 + 1e-9)))
            for s, c in zip((first, second), costs, strict=True)
        ]
        if min(counts) > 0 and counts != [k, k]:
            words = {"gpu_hours": "GPU hours", "core_hours": "core hours"}[unit]
            pairs.append(_pair(a, first, counts[0], b, second, counts[1], words, hours))
    return pairs


def _pair(
    a: _Found,
    first: Search,
    k: int,
    b: _Found,
    second: Search,
    m: int,
    equal: str,
    hours: float | None,
) -> EffortPair:
    found = compare_best(first, k, second, m)
    verdict = judge(found)
    shown = _turn(found, a.metric)
    sides = [
        f"{each.side.name} reaches {_say(_turn(search.estimate(count), each.metric))}"
        for each, search, count in ((a, first, k), (b, second, m))
    ]
    if hours is None:
        at = f"At {say_count(k, 'trial')} each"
    else:
        trials = f"{say_count(k, 'trial')} of {a.side.name} and {m:,} of {b.side.name}"
        named = equal.removesuffix("s") if hours == 1 else equal
        at = f"At {format_value(hours)} {named} each ({trials})"
    unit = f" {a.metric.unit}" if a.metric.unit else ""
    joint = "from" if verdict == "not distinguishable" else "than"
    words = (
        f"{at}, on test data {' and '.join(sides)}: {a.side.name} is {verdict} {joint} "
        f"{b.side.name} ({a.metric.name} differs by {format_value(shown.mean)}{unit}, 95% interval "
        f"{format_value(shown.low)} to {format_value(shown.high)})"
    )
    if verdict == "not distinguishable" and hours is None:
        words += _find_decided(a, first, b, second, k)
    return EffortPair(
        first=a.side.name,
        second=b.side.name,
        equal=equal,
        hours=hours,
        first_trials=k,
        second_trials=m,
        verdict=verdict,
        words=words,
        **vars(shown),
    )


def _find_decided(a: _Found, first: Search, b: _Found, second: Search, most: int) -> str:
    """Return in words at which smaller number of trials the two are told apart; "" at none."""
    for k in reversed(choose_counts(most)[:-1]):
        verdict = judge(compare_best(first, k, second, k))
        if verdict != "not distinguishable":
            return f". At {say_count(k, 'trial')} each it is {verdict}"
    return ""


def _say(found: Estimate) -> str:
    ends = f"{format_value(found.low)} to {format_value(found.high)}"
    return f"{format_value(found.mean)} ({ends})"

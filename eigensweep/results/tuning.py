"""Searches at equal tuning effort: their curves, and what is better, in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar
from zlib import crc32

from eigensweep.common.direction import sign
from eigensweep.results.comparison import TRAINING_ONLY, NamedMetric, list_differing
from eigensweep.results.effort import Estimate, Search, choose_counts, compare_best, judge
from eigensweep.results.ranking import RANKED, cost
from eigensweep.results.statistics import Verdict, find_domain
from eigensweep.search_spaces.labels import format_value, say_count

if TYPE_CHECKING:
    from eigensweep.search_spaces.spec import ExperimentSpec


@dataclass(frozen=True)
class Try:
    """A trial as one try of a search."""

    number: int
    state: str
    value: float | None
    """On validation data."""
    test: Mapping[str, float]
    """Test metrics at the selected step; empty for one that was not trained to an end."""
    training_seconds: float
    """Of all seeds, wherever they were trained."""
    cpu_seconds: float
    """How long it had a process, times its cores; 0 for a reused one, for one that is open once
    more, and where only some of its seeds count: `training_seconds` says it then."""
    gpu_seconds: float
    is_of_many: bool
    """Whether population-based training has replaced it by another one."""


@dataclass(frozen=True)
class EffortPoint:
    """What the best of so many trials comes to on test data."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    trials: int
    core_hours: float
    """What so many trials cost on average"""
    gpu_hours: float
    mean: float
    low: float
    """Lower end of the 95% band"""
    high: float
    """Upper end of the same"""


@dataclass(frozen=True)
class EffortSide:
    """The search that a name stands for."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    name: str
    experiment_name: str
    reason: str | None
    """Why it has no curve; null where it has one"""
    method: str
    """How its trials were chosen"""
    trials: int
    """Trials that count, n"""
    diverged: int
    """Those among them that diverged: they have the worst value"""
    pruned: int
    """Those that a scheduler stopped: chosen after all others, by their value where they stopped"""
    left_out: int
    """Trials that failed, were cancelled, or have not ended"""
    core_hours: float
    """What a trial cost on average"""
    gpu_hours: float
    points: list[EffortPoint]
    words: str
    """What was counted, as a sentence"""


@dataclass(frozen=True)
class EffortPair:
    """Two searches at equal effort; first minus second."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    first: str
    second: str
    equal: str
    """What is equal: `trials`, `core hours` or `GPU hours`"""
    hours: float | None
    """How many hours each; null where trials are equal"""
    first_trials: int
    second_trials: int
    mean: float
    """Mean of first minus second"""
    low: float
    """Lower end of its 95% interval"""
    high: float
    verdict: Verdict
    """Of the first side"""
    words: str
    """All of it as a sentence"""


@dataclass(frozen=True)
class Searched:
    """A search that is compared, with what its trials came to."""

    side: EffortSide
    metric: NamedMetric
    task: Mapping[str, Any]
    baseline: float | None
    valid: Sequence[float]
    """Lower is better; infinite for what was not trained to an end."""
    test: Sequence[float | None]
    """None: the worst value."""


def make_searched(
    name: str,
    experiment_name: str,
    spec: ExperimentSpec,
    tries: Sequence[Try],
    metric: NamedMetric,
    objective: NamedMetric,
    task: Mapping[str, Any],
    baseline: float | None,
    reason: str = "",
) -> Searched:
    """Return a search by its tries. `reason` says why it has no curve, if that is known already."""
    _, _, arm = name.partition("/")
    reason = reason or _refuse(tries, metric.name) or _find_varied_task(spec, arm)
    counted = [each for each in tries if each.state in (*RANKED, "diverged", "pruned")]
    n = len(counted)
    cores, gpus = spec.resources.cpus, spec.resources.gpus
    # A trial that went on from an earlier one has used less than its training took.
    cpu = sum(max(each.cpu_seconds, each.training_seconds * cores) for each in counted)
    gpu = sum(max(each.gpu_seconds, each.training_seconds * gpus) for each in counted)
    side = EffortSide(
        name=name,
        experiment_name=experiment_name,
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
    valid, test = [], []
    for each in counted:
        has_ended = each.state in RANKED
        valid.append(cost(each.value if has_ended else None, objective.better))
        stand_in = each.value if each.state == "pruned" and metric.name == objective.name else None
        has_value = has_ended and each.value is not None
        test.append(each.test.get(metric.name) if has_value else stand_in)
    side = replace(side, words=_describe(side))
    return Searched(side, metric, task, baseline, valid, test)


def compare_searches(
    found: Sequence[Searched],
) -> tuple[str | None, list[EffortSide], list[EffortPair]]:
    """Return why searches are not compared, if so; each with its curve; and every pair."""
    able = [each for each in found if each.side.reason is None]
    reason = _find_obstacle(able)
    searches: dict[str, Search] = {}
    if reason is None and able:
        ends = _find_ends(able)
        searches = {each.side.name: _make_search(each, *ends) for each in able}
    fewest = min((each.side.trials for each in able), default=0)
    sides = [_draw(each, searches.get(each.side.name), fewest) for each in found]
    pairs: list[EffortPair] = []
    for a, b in combinations([each for each in able if each.side.name in searches], 2):
        pairs += _compare(a, searches[a.side.name], b, searches[b.side.name])
    return reason, sides, pairs


def _describe(side: EffortSide) -> str:
    """Return what was counted of a search as a sentence."""
    from eigensweep.search_spaces.sections import LEARNING  # brings torch, as every spec does

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


def _refuse(tries: Sequence[Try], metric: str) -> str:
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


def _find_obstacle(found: Sequence[Searched]) -> str | None:
    for a, b in combinations(found, 2):
        if differing := list_differing(a.task, b.task):
            return f"the tasks of {a.side.name} and {b.side.name} differ in {', '.join(differing)}"
        if a.metric != b.metric:
            return (
                f"{a.side.name} is ranked by {a.metric.name} and {b.side.name} by "
                f"{b.metric.name}; name one metric for both"
            )
    return None


def _find_ends(found: Sequence[Searched]) -> tuple[float, float]:
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


def _make_search(found: Searched, best: float, worst: float) -> Search:
    seed = crc32(found.side.name.encode())  # whatever stands beside it
    by = sign(found.metric.better)
    test = [worst if value is None else by * value for value in found.test]
    return Search(found.valid, test, best, worst, seed)


def _draw(found: Searched, search: Search | None, fewest: int) -> EffortSide:
    if search is None:
        return found.side
    side, points = found.side, []
    for k in sorted({*choose_counts(search.n), fewest}):
        seen = _turn(search.estimate(k), found.metric)
        points.append(EffortPoint(k, k * side.core_hours, k * side.gpu_hours, **vars(seen)))
    return replace(side, points=points)


def _turn(found: Estimate, metric: NamedMetric) -> Estimate:
    """Return an estimate in the metric's own direction."""
    if metric.better == "lower":
        return found
    return Estimate(-found.mean, -found.high, -found.low)


def _compare(a: Searched, first: Search, b: Searched, second: Search) -> list[EffortPair]:
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
    a: Searched,
    first: Search,
    k: int,
    b: Searched,
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
        at = f"At no more than {format_value(hours)} {named} each ({trials})"
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


def _find_decided(a: Searched, first: Search, b: Searched, second: Search, most: int) -> str:
    """Return in words at which smaller number of trials the two are told apart; "" at none."""
    for k in reversed(choose_counts(most)[:-1]):
        verdict = judge(compare_best(first, k, second, k))
        if verdict != "not distinguishable":
            return f". At {say_count(k, 'trial')} each it is {verdict}"
    return ""


def _say(found: Estimate) -> str:
    ends = f"{format_value(found.low)} to {format_value(found.high)}"
    return f"{format_value(found.mean)} ({ends})"

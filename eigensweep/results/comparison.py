"""Compares trials seed by seed: which is better, by how much, with what certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Any, ClassVar, Literal, Protocol

from eigensweep.common.direction import Better
from eigensweep.results.ranking import RANKED
from eigensweep.results.sequential import Look, SoFar, look, look_back
from eigensweep.results.statistics import (
    SIGNIFICANCE,
    Difference,
    Summary,
    Verdict,
    compare_paired,
    correct,
    find_domain,
    judge_alike,
    summarize,
)
from eigensweep.search_spaces.labels import format_share, say_count
from eigensweep.search_spaces.planning import find_seeds

Split = Literal["valid", "test"]

SPLITS: Mapping[Split, str] = {"valid": "validation data", "test": "test data"}

TRAINING_ONLY = ("batch_size",)
"""Fields of a task that change how it trains, and not what is scored."""


class NamedMetric(Protocol):
    """A metric, as comparisons see it."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def better(self) -> Better: ...


@dataclass(frozen=True)
class Subject:
    """A trial that is compared, with what is compared of it."""

    name: str
    """What was asked for."""
    experiment: str
    trial: int
    state: str
    steps: int
    """Optimizer steps of its budget."""
    metric: NamedMetric
    baselines: Mapping[Split, float | None]
    """What a memoryless model scores on the metric, on each part of the data."""
    task: Mapping[str, Any]
    values: Mapping[Split, Mapping[int, float]]
    """The metric's value for each seed that has one."""
    core_hours: float | None
    """Of a seed; None where it is not known."""

    @property
    def seeds(self) -> list[int]:
        """The seeds with a value on any part of the data, in order."""
        return sorted({seed for column in self.values.values() for seed in column})

    def summarize(self, split: Split) -> Summary | None:
        """Return mean, spread and interval over the seeds, None where no seed has a value."""
        values = list(self.values[split].values())
        return summarize(values, find_domain(self.metric.name)) if values else None


@dataclass(frozen=True)
class Plan:
    """What it takes to decide a difference of a given size, by the spread so far."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    difference: float
    seeds: int | None
    """Seeds of each side, about; null beyond 1,000"""
    core_hours: float | None
    """Of the seeds that are missing, on both sides; null where nobody knows"""


@dataclass(frozen=True)
class Outlook(SoFar):
    """What the seeds say so far, at each look, and what it takes to decide."""

    looks: Sequence[Look]
    """The same after each seed, from the second one on"""
    plan: Plan | None
    """What it takes to decide a difference of `smallest`; null without one"""


@dataclass(frozen=True)
class Compared:
    """What the first side has more than the second, over the seeds that both have."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    verdict: Verdict
    """Of the first side, by the corrected p-value"""
    reason: str | None
    """Why they are not comparable; null where they are"""
    words: str
    """All of it as a sentence that can be cited"""
    seeds: Sequence[int]
    """The shared seeds"""
    n: int
    mean: float | None
    """Mean of first minus second"""
    sd: float | None
    """Standard deviation of the differences"""
    low: float | None
    """Lower end of the mean's 95% interval, uncorrected"""
    high: float | None
    """Upper end of the same"""
    p: float | None
    """p-value of this comparison alone"""
    corrected_p: float | None
    """p-value corrected for all pairs, after Holm"""
    alike_p: float | None
    """p-value of two one-sided tests that they differ by no more than `smallest`, corrected"""
    effect: float | None
    """`mean` as a ratio to the task's baseline"""
    so_far: Outlook | None
    """For a decision while seeds are added; null for fewer than two"""


@dataclass(frozen=True)
class Pair:
    """Two sides, compared on validation and on test data."""

    __pydantic_config__: ClassVar = {"use_attribute_docstrings": True}
    first: str
    second: str
    valid: Compared
    test: Compared


def compare_all(
    subjects: Sequence[Subject], smallest: float | None = None
) -> tuple[dict[Split, int], list[Pair]]:
    """Return over how many pairs p-values are corrected, by part of the data, and every pair.

    Subjects that are shown to differ by no more than `smallest` are equivalent.
    """
    pairs = list(combinations(subjects, 2))
    by_split = {split: _find_differences(pairs, split, smallest) for split in SPLITS}
    counts = {
        split: sum(each.p is not None for each in differences)
        for split, differences in by_split.items()
    }
    described = {
        split: [
            _describe(a, b, split, found, counts[split], smallest)
            for (a, b), found in zip(pairs, differences, strict=True)
        ]
        for split, differences in by_split.items()
    }
    return counts, [
        Pair(a.name, b.name, valid, test)
        for (a, b), valid, test in zip(pairs, described["valid"], described["test"], strict=True)
    ]


def list_differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return how two tasks differ in what is scored: `delay (100 and 200)`."""
    if a["name"] != b["name"]:
        return [f"name ({a['name']} and {b['name']})"]
    fields = sorted((a.keys() | b.keys()) - set(TRAINING_ONLY))
    return [f"{f} ({a.get(f)} and {b.get(f)})" for f in fields if a.get(f) != b.get(f)]


def _find_differences(
    pairs: Sequence[tuple[Subject, Subject]], split: Split, smallest: float | None
) -> list[Difference]:
    """Return the difference of each pair on one split, corrected for all of them."""
    differences = []
    for a, b in pairs:
        reason = _find_obstacle(a, b, split)
        if reason is None:
            found = compare_paired(
                a.values[split],
                b.values[split],
                better=a.metric.better,
                baseline=a.baselines[split],
            )
        else:
            found = Difference(seeds=(), verdict="not comparable", reason=reason)
        differences.append(found)
    corrected = correct(differences)
    return corrected if smallest is None else judge_alike(corrected, smallest)


def _find_obstacle(a: Subject, b: Subject, split: Split) -> str | None:
    """Return why two subjects cannot be compared at all, None if they can."""
    if (a.experiment, a.trial) == (b.experiment, b.trial):
        return f"both are trial {a.trial} of experiment {a.experiment}"
    if a.metric.name != b.metric.name and a.task["name"] == b.task["name"]:
        return (
            f"{a.name} is ranked by {a.metric.name} and {b.name} by {b.metric.name}; "
            "name one metric for both"
        )
    if differing := list_differing(a.task, b.task):
        return f"their tasks differ in {', '.join(differing)}"
    for each in (a, b):
        if each.state not in RANKED:
            return f"trial {each.trial} of experiment {each.experiment} is {each.state}"
    for each in (a, b):
        if not each.values[split]:
            return f"{each.name} has no {a.metric.name} on {SPLITS[split]}"
    return None


def _describe(
    a: Subject, b: Subject, split: Split, found: Difference, count: int, smallest: float | None
) -> Compared:
    seen, so_far = look(found, max(1, count), within=smallest), None
    if seen is not None:
        parts = [found.seeds[:n] for n in range(2, found.n + 1)]
        error = SIGNIFICANCE / max(1, count)
        looks = list(look_back(a.values[split], b.values[split], parts, error))
        plan = None if smallest is None else _make_plan(a, b, found, smallest, 1 / seen.wanted)
        so_far = Outlook(**vars(seen), looks=looks, plan=plan)
    numbers = {name: value for name, value in vars(found).items() if name != "better"}
    words = _say(a, b, split, found, count, smallest)
    return Compared(**numbers, n=found.n, words=words, so_far=so_far)


def _make_plan(a: Subject, b: Subject, found: Difference, difference: float, error: float) -> Plan:
    """Return the seeds and hours at which a difference of this size would be decided."""
    seeds = find_seeds(difference / found.sd if found.sd else inf, error)
    hours = None
    if seeds is not None and a.core_hours is not None and b.core_hours is not None:
        hours = sum(
            each.core_hours * max(0, seeds - len(each.seeds))
            for each in (a, b)
            if each.core_hours is not None
        )
    return Plan(difference, seeds, hours)


def _say(
    a: Subject, b: Subject, split: Split, found: Difference, count: int, smallest: float | None
) -> str:
    """Return a difference as a sentence that can be cited."""
    joint = {"better": "than", "worse": "than", "not distinguishable": "from", "equivalent": "to"}
    joined = joint.get(found.verdict, "with")
    words = f"{a.name} is {found.verdict} {joined} {b.name} on {SPLITS[split]}"
    if found.mean is None:
        return f"{words}, because {found.reason}"
    by = f"{a.metric.name} differs by {found.mean:.4g} {a.metric.unit}".rstrip()
    if found.effect is not None:
        by += f", {format_share(found.effect)} of the baseline"
    if a.steps != b.steps:
        by += f" after {a.steps:,} and {say_count(b.steps, 'step')} of training"
    seeds = f"seed {found.seeds[0]}" if found.n == 1 else f"seeds {_list_seeds(found.seeds)}"
    if found.low is None:
        return f"{words}, because {found.reason}: {by} ({seeds})"
    corrected = f", corrected for {count} comparisons" if count > 1 else ""
    if found.verdict == "equivalent":
        by += f", by no more than {smallest:.4g}"
        corrected += f"; two one-sided tests: p = {found.alike_p:.2g}"
    return (
        f"{words}: {by} (95% interval {found.low:.4g} to {found.high:.4g}; "
        f"p = {found.corrected_p:.2g}{corrected}; n = {found.n}, {seeds})"
    )


def _list_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text; those that follow one another as a range.

    >>> _list_seeds([0, 1, 2, 3, 7])
    '0 to 3, 7'
    """
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )

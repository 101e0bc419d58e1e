"""Compares trials seed by seed: which is better, by how much, with what certainty.

Runs in the service's process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import Any, Literal

from pydantic import Field

from eigensweep.search_spaces.errors import UnknownMetricError
from eigensweep.search_spaces.labels import format_share
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.planning import find_seeds
from eigensweep.service.api.schemas import AnswerModel, Metric, SummaryNow
from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.queries import Queries
from eigensweep.service.record.tables import ExperimentRow, TrialRow
from eigensweep.tasks import TASKS
from eigensweep.workers.shared.messages import Metrics, ReplicateResult, Result
from eigensweep.workers.shared.sequential import VerdictSoFar, look, look_back
from eigensweep.workers.shared.states import RANKED
from eigensweep.workers.shared.statistics import (
    SIGNIFICANCE,
    TEST,
    Difference,
    Summary,
    Verdict,
    compare_paired,
    correct,
    find_domain,
    judge_alike,
    summarize,
)

Split = Literal["valid", "test"]

SPLITS: dict[Split, str] = {"valid": "validation data", "test": "test data"}

LONGEST_NUMBER = 10
"""A text of so many digits or more is no trial's number."""

TRAINING_ONLY = ("batch_size",)
"""Fields of a task that change how it trains, and not what is scored."""


class Side(AnswerModel):
    """One of the trials that are compared."""

    name: str = Field(description="What was asked for")
    chosen: str = Field(description="How the trial was found")
    experiment: str
    experiment_name: str
    trial: int
    arm: str
    state: str
    hash: str | None = Field(
        description="Content hash: it covers settings and the versions of model, task and trainer"
    )
    params: dict[str, Scalar]
    steps: int = Field(description="Optimizer steps of its budget")
    seeds: list[int] = Field(description="Seeds with a result")
    metric: Metric
    baseline: float | None = Field(description="What a memoryless model scores on the metric")
    valid: SummaryNow | None = Field(description="On validation data, at the selected step")
    test: SummaryNow | None = Field(description="On test data, at the same step")


class LookNow(AnswerModel):
    """What the first so many seeds say."""

    seeds: int
    mean: float
    low: float | None
    high: float | None
    e_value: float


class PlanNow(AnswerModel):
    """What it takes to decide a difference of a given size, by the spread so far."""

    difference: float
    seeds: int | None = Field(description="Seeds of each side, about; null beyond 1,000")
    core_hours: float | None = Field(
        description="Of the seeds that are missing, on both sides; null where nobody knows"
    )


class SoFarNow(AnswerModel):
    """What the seeds say so far, where more may be added and looked at, one after another."""

    e_value: float = Field(
        description="Evidence against no difference. 20 decides, times the pairs that are "
        "compared; by chance it ever gets there in at most 5% of cases, however often one looks"
    )
    decided: bool
    verdict: VerdictSoFar = Field(
        description="Of the first side; `equivalent` where it is shown to differ by no more than "
        "`smallest`"
    )
    wanted: float = Field(description="The e-value that decides")
    low: float | None = Field(
        description="Lower end of an interval of the mean that holds at every look together; null "
        "where so few seeds exclude nothing"
    )
    high: float | None = Field(description="Upper end of the same")
    seeds: int | None = Field(
        description="Seeds at which a difference of this size and spread is decided, about; null "
        "beyond 1,000"
    )
    looks: list[LookNow] = Field(description="The same after each seed, from the second one on")
    plan: PlanNow | None = Field(
        description="What it takes to decide a difference of `smallest`; null without one"
    )


class DifferenceNow(AnswerModel):
    """What the first side has more than the second, over the seeds that both have."""

    verdict: Verdict = Field(description="Of the first side, by the corrected p-value")
    reason: str | None = Field(description="Why they are not comparable; null where they are")
    words: str = Field(description="All of it as a sentence")
    seeds: list[int] = Field(description="The shared seeds")
    n: int
    mean: float | None = Field(description="Mean of first minus second")
    sd: float | None = Field(description="Standard deviation of the differences")
    low: float | None = Field(description="Lower end of the mean's 95% interval, uncorrected")
    high: float | None = Field(description="Upper end of the same")
    p: float | None = Field(description="p-value of this comparison alone")
    corrected_p: float | None = Field(description="p-value corrected for all pairs, after Holm")
    alike_p: float | None = Field(
        description="p-value of two one-sided tests that they differ by no more than `smallest`, "
        "corrected for all pairs; null without one"
    )
    effect: float | None = Field(description="`mean` as a ratio to the task's baseline")
    so_far: SoFarNow | None = Field(
        description="For a decision while seeds are added; null for fewer than two"
    )


class Pair(AnswerModel):
    """Two sides, compared on validation and on test data."""

    first: str
    second: str
    valid: DifferenceNow
    test: DifferenceNow


class Comparison(AnswerModel):
    """Every pair of the sides, with all that is needed to cite it."""

    method: str = Field(description="The test that was used")
    comparisons: dict[Split, int] = Field(description="Pairs over which p-values are corrected")
    smallest: float | None = Field(description="The smallest difference of interest, if one came")
    version: str = Field(description="Version of Eigensweep that compared")
    sides: list[Side]
    pairs: list[Pair]


@dataclass(frozen=True)
class _Found:
    """A trial with what is compared of it."""

    side: Side
    trial: TrialRow
    task: Mapping[str, Any]
    values: dict[Split, dict[int, float]]
    core_hours: float | None
    """Of a seed; None where it is not known."""


def compare(
    record: Queries,
    names: Sequence[str],
    metric: str | None,
    version: str,
    smallest: float | None = None,
) -> Comparison:
    """Return the comparison of every pair of what is named.

    A name is EXPERIMENT/NUMBER for a trial, EXPERIMENT/ARM for the arm's best trial by validation,
    or EXPERIMENT for that of all arms. `metric` is the one that is compared, by default what each
    experiment ranks by. Sides that are shown to differ by no more than `smallest` are equivalent.

    Raises:
        NotFoundError: if there is no such experiment, trial or arm.
        ConflictError: if no trial of it has finished.
        UnknownMetricError: if the task has no such metric.
    """
    found = [_find(record, name, metric) for name in names]
    pairs = list(combinations(found, 2))
    by_split = {split: _compare_all(pairs, split, smallest) for split in SPLITS}
    counts = {
        split: sum(each.p is not None for each in differences)
        for split, differences in by_split.items()
    }
    return Comparison(
        method=TEST,
        comparisons=counts,
        smallest=smallest,
        version=version,
        sides=[each.side for each in found],
        pairs=[
            Pair(
                first=a.side.name,
                second=b.side.name,
                valid=_describe(a, b, "valid", valid, counts["valid"], smallest),
                test=_describe(a, b, "test", test, counts["test"], smallest),
            )
            for (a, b), valid, test in zip(pairs, *by_split.values(), strict=True)
        ],
    )


def _find(record: Queries, name: str, metric: str | None) -> _Found:
    id, slash, part = name.partition("/")
    experiment = record.row(id)
    if is_number(part):
        trial, chosen = record.trial(id, int(part)).trial, "named"
    else:
        arm = part if slash else None
        check_arm(experiment, arm)
        ranked = record.trials(id, states=sorted(RANKED), arm=arm, sort="value", limit=1)
        if not ranked:
            where = f"arm '{arm}' of experiment '{id}'" if arm else f"experiment '{id}'"
            raise ConflictError(f"no trial of {where} has finished, so there is none to compare")
        trial = ranked[0].trial
        chosen = f"best {'of the arm' if arm else 'of the experiment'} on validation data"
    return _describe_side(name, chosen, experiment, trial, metric)


def is_number(part: str) -> bool:
    """Return whether the second part of a name is a trial's number, not an arm."""
    return part.isdecimal() and len(part) < LONGEST_NUMBER


def check_arm(experiment: ExperimentRow, arm: str | None) -> None:
    """Refuse an arm that an experiment has not.

    Raises:
        NotFoundError: if there is none of this name.
    """
    arms = _list_arms(experiment)
    if arm is not None and arm not in arms:
        raise NotFoundError(
            f"experiment '{experiment.id}' has no arm '{arm}'; its arms are {', '.join(arms)}; "
            f"a trial is written {experiment.id}/NUMBER"
        )


def _list_arms(experiment: ExperimentRow) -> list[str]:
    arms = experiment.spec.get("arms") or [{"model": experiment.spec["model"]}]
    return [arm.get("name") or arm["model"]["name"] for arm in arms]


def _describe_side(
    name: str, chosen: str, experiment: ExperimentRow, trial: TrialRow, metric: str | None
) -> _Found:
    task = (trial.config or {}).get("task") or experiment.spec["task"]
    measured, baseline = find_metric(experiment, task, metric)
    result = Result.from_dict(trial.result or {})
    values: dict[Split, dict[int, float]] = {
        "valid": _take(result.by_replicate, "valid", measured.name, experiment.metric),
        "test": _take(result.by_replicate, "test", measured.name, experiment.metric),
    }
    side = Side.made_of(
        trial,
        name=name,
        chosen=chosen,
        experiment=experiment.id,
        experiment_name=experiment.name,
        trial=trial.number,
        hash=trial.config_hash,
        seeds=sorted({seed for column in values.values() for seed in column}),
        metric=measured,
        baseline=baseline,
        valid=_summarize(values["valid"], measured.name),
        test=_summarize(values["test"], measured.name),
    )
    cpus = float(experiment.spec.get("resources", {}).get("cpus", 1.0))
    hours = result.seconds * cpus / 3600 / result.replicates if result.seconds else None
    return _Found(side, trial, task, values, hours)


def find_metric(
    experiment: ExperimentRow, task: Mapping[str, Any], name: str | None
) -> tuple[Metric, float | None]:
    """Return the metric that is compared, and its baseline if that follows from the config."""
    if name is None or name == experiment.metric:
        return Metric.made_of(experiment, name=experiment.metric), experiment.baseline
    config = TASKS[task["name"]].Config.model_validate(task)
    known = [metric.name for metric in config.metrics]
    if name not in known:
        message = f"{config.name} has no metric '{name}'; it has {', '.join(known)}"
        raise UnknownMetricError("metric", message, got=name, available=known)
    metric = config.find_metric(name)
    return Metric.made_of(metric), config.baselines.get(name)


def _take(
    replicates: Sequence[ReplicateResult], split: Split, metric: str, objective: str
) -> dict[int, float]:
    """Return a metric's value for each seed that has one."""
    taken = {}
    for each in replicates:
        scores: Metrics = each.valid if split == "valid" else each.test
        value = scores.get(metric)
        if split == "valid" and metric == objective:
            value = each.value
        if value is not None:
            taken[each.seed] = value
    return taken


def _summarize(values: Mapping[int, float], metric: str) -> Summary | None:
    return summarize(list(values.values()), find_domain(metric)) if values else None


def _compare_all(
    pairs: Sequence[tuple[_Found, _Found]], split: Split, smallest: float | None
) -> list[Difference]:
    """Return the difference of each pair on one split, corrected for all of them."""
    differences = []
    for a, b in pairs:
        reason = _find_obstacle(a, b, split)
        if reason is None:
            better, baseline = a.side.metric.better, a.side.baseline
            found = compare_paired(
                a.values[split], b.values[split], better=better, baseline=baseline
            )
        else:
            found = Difference(seeds=(), verdict="not comparable", reason=reason)
        differences.append(found)
    corrected = correct(differences)
    return corrected if smallest is None else judge_alike(corrected, smallest)


def _find_obstacle(a: _Found, b: _Found, split: Split) -> str | None:
    """Return why two sides cannot be compared at all, None if they can."""
    one, two = a.side, b.side
    if (one.experiment, one.trial) == (two.experiment, two.trial):
        return f"both are trial {one.trial} of experiment {one.experiment}"
    if one.metric.name != two.metric.name and a.task["name"] == b.task["name"]:
        return (
            f"{one.name} is ranked by {one.metric.name} and {two.name} by {two.metric.name}; "
            "name one metric for both"
        )
    if differing := list_differing(a.task, b.task):
        return f"their tasks differ in {', '.join(differing)}"
    for each in (one, two):
        if each.state not in RANKED:
            return f"trial {each.trial} of experiment {each.experiment} is {each.state}"
    for found in (a, b):
        if not found.values[split]:
            return f"{found.side.name} has no {one.metric.name} on {SPLITS[split]}"
    return None


def list_differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return how two tasks differ in what is scored: `delay (100 and 200)`."""
    if a["name"] != b["name"]:
        return [f"name ({a['name']} and {b['name']})"]
    fields = sorted((a.keys() | b.keys()) - set(TRAINING_ONLY))
    return [f"{f} ({a.get(f)} and {b.get(f)})" for f in fields if a.get(f) != b.get(f)]


def _describe(
    a: _Found, b: _Found, split: Split, found: Difference, count: int, smallest: float | None
) -> DifferenceNow:
    seen, so_far = look(found, max(1, count), within=smallest), None
    if seen is not None:
        parts = [found.seeds[:n] for n in range(2, found.n + 1)]
        back = look_back(a.values[split], b.values[split], parts, SIGNIFICANCE / max(1, count))
        looks = [LookNow.made_of(each, seeds=first.n, mean=first.mean) for first, each in back]
        plan = None if smallest is None else _make_plan(a, b, found, smallest, 1 / seen.wanted)
        so_far = SoFarNow.made_of(seen, looks=looks, plan=plan)
    words = _say(a.side, b.side, split, found, count, smallest)
    return DifferenceNow.made_of(found, words=words, so_far=so_far)


def _make_plan(a: _Found, b: _Found, found: Difference, difference: float, error: float) -> PlanNow:
    """Return the seeds and hours at which a difference of this size would be decided."""
    seeds = find_seeds(difference / found.sd, error) if found.sd else find_seeds(inf, error)
    hours = None
    if seeds is not None and a.core_hours is not None and b.core_hours is not None:
        hours = sum(
            each.core_hours * max(0, seeds - len(each.side.seeds))
            for each in (a, b)
            if each.core_hours is not None
        )
    return PlanNow(difference=difference, seeds=seeds, core_hours=hours)


def _say(
    a: Side, b: Side, split: Split, found: Difference, count: int, smallest: float | None
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

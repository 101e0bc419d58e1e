"""Reads the numbers of a reproduction: of its trials, of their curves, and of its analyses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from statistics import fmean, stdev
from typing import Any, Protocol

from eigensweep.common.direction import Better, sign
from eigensweep.reports.messages import KeptAnalysis, MeasuredExperiment, MeasuredTrial
from eigensweep.reports.verdicts import ArmNumbers
from eigensweep.results.ranking import cost
from eigensweep.results.statistics import Domain, find_domain
from eigensweep.results.trial_result import ReplicateResult, Result
from eigensweep.search_spaces.shipped.reproductions import Measure
from eigensweep.search_spaces.trial import TrialConfig
from eigensweep.store.commits.curves import CurvePoint, cut
from eigensweep.tasks.base import TaskConfig

TRAINED = ("completed", "reused", "pruned", "diverged")
"""Ends of a trial after which its numbers say something about its configuration."""

MOST_SPREAD_OF_TIMES = 0.1
"""Standard deviation between seeds, as a share of the mean, beyond which times decide nothing."""

Curve = list[tuple[int, float]]
"""Steps and values."""


@dataclass(frozen=True)
class ArmTrial:
    """The trial that stands for an arm: the best of those of the arm that trained."""

    trial: MeasuredTrial
    config: TrialConfig
    result: Result

    @property
    def replicates(self) -> Sequence[ReplicateResult]:
        """The result of each seed."""
        return self.result.by_replicate

    @property
    def diverged(self) -> frozenset[int]:
        """The seeds whose training diverged."""
        return frozenset(each.seed for each in self.replicates if each.outcome == "diverged")


class CurveReader(Protocol):
    """Where the curves are: a store, or a file of results."""

    def points(self, key: str) -> list[CurvePoint]:
        """Return the points of a replicate."""


@dataclass
class ArmsMeasured:
    """An experiment of a reproduction with its numbers."""

    experiment: MeasuredExperiment
    store: CurveReader
    _curves: dict[tuple[str, str], dict[int, Curve]] = field(default_factory=dict)

    @property
    def baseline(self) -> float | None:
        """The memoryless baseline of the objective, on the validation data."""
        return self.experiment.baseline

    def baseline_of(self, task: TaskConfig, name: str) -> float | None:
        """Return the baseline of a metric on the data that it is measured on."""
        split, _, metric = name.partition("/")
        is_objective = not metric or metric == self.experiment.metric
        if is_objective and "test" not in split:
            return self.baseline
        known = task.baselines_on("test" if "test" in split else "valid")
        return known.get(metric, self.baseline if is_objective else None)

    def domain(self, metric: str, *, of_baseline: bool = False) -> Domain:
        """Return where a number can lie; `value` is the objective's."""
        domain = find_domain(self.experiment.metric if metric == "value" else metric)
        return "positive" if of_baseline and domain == "fraction" else domain

    @cached_property
    def arms(self) -> dict[str, ArmTrial]:
        """The trial that stands for each arm, or each value of `sides`; without those missing.

        It is the best one of those with the values that the suite names, if it names any.
        """
        by_arm: dict[str, list[ArmTrial]] = {}
        for trial in self.experiment.trials:
            if trial.state in TRAINED and trial.config is not None and trial.result is not None:
                found = ArmTrial(
                    trial, TrialConfig.from_dict(dict(trial.config)), Result.from_dict(trial.result)
                )
                if self._is_chosen(trial):
                    by_arm.setdefault(self.side_of(trial), []).append(found)
        return {arm: min(found, key=self._rank) for arm, found in by_arm.items()}

    def side_of(self, trial: MeasuredTrial) -> str:
        """Return the arm of a trial, or its value of the parameter that is compared."""
        sides = self.experiment.sides
        return trial.arm if sides is None else str(trial.params.get(sides))

    def _is_chosen(self, trial: MeasuredTrial) -> bool:
        """Whether the trial may stand for its arm: with the values that the suite names."""
        wanted = self.experiment.chosen.get(self.side_of(trial), {})
        return all(trial.params.get(path) == value for path, value in wanted.items())

    def _rank(self, found: ArmTrial) -> tuple[int, float]:
        return len(found.diverged), cost(found.result.value, self.experiment.better)

    def curves(self, arm: str, name: str) -> dict[int, Curve]:
        """Return the points of a curve of an arm by seed; empty where nothing was kept."""
        if (arm, name) not in self._curves:
            found: dict[int, Curve] = {}
            chosen = self.arms.get(arm)
            if chosen is not None:
                for seed in chosen.config.seeds:
                    points = self.store.points(f"{chosen.trial.place}/{seed}")
                    points = cut(points, chosen.config.training.steps)
                    curve = [(p.step, p.metrics[name]) for p in points if name in p.metrics]
                    if curve:
                        found[seed] = curve
            self._curves[arm, name] = found
        return self._curves[arm, name]

    def side(self, arm: str, measure: Measure) -> ArmNumbers:
        """Return what an arm gave, by seed."""
        if arm not in self.arms:
            why = self.experiment.problem or "no trial of it trained to an end"
            return ArmNumbers(missing=why)
        chosen = self.arms[arm]
        scale = 1.0
        if measure.of_baseline:
            baseline = self.baseline_of(
                chosen.config.task, measure.curve or measure.metric or "value"
            )
            if not baseline:
                return ArmNumbers(missing="the baseline is not known")
            scale = baseline
        if measure.curve is not None:
            return self._side_of_curve(arm, chosen, measure, scale)
        assert measure.metric is not None
        domain = self.domain(measure.metric, of_baseline=measure.of_baseline)
        values = {
            each.seed: value / scale
            for each in chosen.replicates
            if each.seed not in chosen.diverged
            and (value := score(each, measure.metric)) is not None
        }
        number = measure.metric
        if number == "seconds_per_step":
            number = "processor time of a step: an older version trained it, or a GPU"
        side = _make_side(chosen, values, number, domain)
        if measure.metric == "seconds_per_step" and len(values) > 1:
            return replace(side, doubt=_doubt_times(list(values.values())))
        return side

    def _side_of_curve(
        self, arm: str, chosen: ArmTrial, measure: Measure, scale: float
    ) -> ArmNumbers:
        name = measure.curve or ""
        curves = self.curves(arm, name)
        better = self._better(chosen, name)
        training = chosen.config.training
        assert training.steps is not None
        values: dict[int, float] = {}
        for seed, curve in curves.items():
            if measure.steps_to is not None:
                reached = first_step(curve, measure.steps_to * scale, better)
                values[seed] = inf if reached is None else float(reached)
            elif seed not in chosen.diverged and (found := value_at(curve, measure.at)) is not None:
                values[seed] = found / scale
        if measure.steps_to is not None:
            if values or len(chosen.diverged) == len(chosen.replicates):
                # A curve of test data has no point before the first evaluation.
                values = dict.fromkeys(sorted(chosen.diverged - values.keys()), inf) | values
            last = float(training.steps)
            return ArmNumbers(values, last=last) if values else ArmNumbers(missing="no curve")
        where = name if measure.at is None else f"{name} at step {measure.at}"
        return _make_side(chosen, values, where, self.domain(name, of_baseline=measure.of_baseline))

    def _better(self, chosen: ArmTrial, name: str) -> Better:
        return chosen.config.task.find_metric(name.partition("/")[2]).better

    def better(self, arm: str, measure: Measure) -> Better:
        """Return which values of a measure are better."""
        name = measure.curve or measure.metric or ""
        if measure.steps_to is not None or name in ("seconds_per_step", "parameters"):
            return "lower"
        if name == "value" or arm not in self.arms:
            return self.experiment.better
        return self._better(self.arms[arm], name)


def join_trials(first: MeasuredExperiment, wider: MeasuredExperiment) -> MeasuredExperiment:
    """Return an experiment whose trials have the seeds that `wider` added to some of them."""

    def widen(trial: MeasuredTrial) -> MeasuredTrial:
        place = trial.arm, trial.params
        found = next((each for each in wider.trials if (each.arm, each.params) == place), trial)
        more = max(
            trial, found, key=lambda each: len(Result.from_dict(each.result or {}).by_replicate)
        )
        return more.model_copy(update={"number": trial.number})

    return wider.model_copy(
        update={
            "trials": tuple(map(widen, first.trials)),
            "spec": first.spec,
            "started_at": first.started_at,
            "problem": first.problem or wider.problem,
        }
    )


@dataclass(frozen=True)
class AnalysisNumbers:
    """The results of the analyses of a reproduction."""

    made: Sequence[KeptAnalysis]

    def side(self, measure: Measure) -> ArmNumbers:
        """Return a number of the results by repetition."""
        assert measure.analysis is not None
        assert measure.number is not None
        try:
            values = self._read(measure.analysis, measure.number)
            if measure.over is not None:
                below = self._read(measure.over_analysis or measure.analysis, measure.over)
                values = {key: values[key] / below[key] for key in values.keys() & below.keys()}
        except (LookupError, ZeroDivisionError) as error:
            return ArmNumbers(missing=str(error))
        return ArmNumbers(values) if values else ArmNumbers(missing="it was not made")

    def _read(self, label: str, path: str) -> dict[int, float]:
        """Return the number at a path of an analysis's results, by repetition.

        Raises:
            LookupError: if a repetition is missing, or has no such number.
        """
        found = {}
        for each in self.made:
            if each.label == label:
                if each.content is None:
                    raise LookupError(f"{label}: {each.problem or 'it was not made'}")
                found[each.repeat] = find_number(each.content, path)
        return found


def _make_side(
    chosen: ArmTrial, values: Mapping[int, float], number: str, domain: Domain
) -> ArmNumbers:
    """Return a side whose diverged seeds have no value; what was not measured is missing."""
    trained = len(chosen.replicates)
    if not values and len(chosen.diverged) < trained:
        lost = f": {len(chosen.diverged)} of {trained} seeds diverged" if chosen.diverged else ""
        return ArmNumbers(missing=f"it has no {number}{lost}")
    return ArmNumbers(values, chosen.diverged, domain=domain)


def _doubt_times(seconds: Sequence[float]) -> str | None:
    """Return why times decide nothing: between seeds they differ by what the machine did."""
    spread = stdev(seconds) / fmean(seconds)
    if spread <= MOST_SPREAD_OF_TIMES:
        return None
    return f"times of its seeds spread by {spread:.0%}: the machine had other work"


def score(replicate: ReplicateResult, metric: str) -> float | None:
    """Return a score of a replicate by its name, such as `value` or `test/mse`."""
    if metric == "value":
        return replicate.value
    if metric == "seconds_per_step":
        return replicate.step_seconds
    split, _, name = metric.partition("/")
    scores: Mapping[str, Mapping[str, float] | None] = {
        "valid": replicate.valid,
        "test": replicate.test,
        "best_test": replicate.best_test,
        "last_test": replicate.last_test,
    }
    return (scores.get(split) or {}).get(name)


def first_step(curve: Curve, threshold: float, better: Better) -> int | None:
    """Return the first step at which a curve is at or beyond a threshold, None if it never is.

    >>> first_step([(0, 3.0), (10, 1.0), (20, 0.1)], 1.0, "lower")
    10
    """
    factor = sign(better)
    return next((step for step, value in curve if factor * value <= factor * threshold), None)


def value_at(curve: Curve, step: int | None) -> float | None:
    """Return the value of a curve at a step, or at its end; None if it has no such point.

    >>> value_at([(0, 3.0), (10, 1.0)], 10), value_at([(0, 3.0), (10, 1.0)], None)
    (1.0, 1.0)
    """
    if step is None:
        return curve[-1][1]
    return next((value for at, value in curve if at == step), None)


def mean_curve(curves: Mapping[int, Curve]) -> list[tuple[int, float, float, float]]:
    """Return step, mean, smallest and largest value at the steps that all seeds have."""
    by_seed = [dict(curve) for curve in curves.values()]
    steps = sorted(set.intersection(*(set(curve) for curve in by_seed))) if by_seed else []
    found = []
    for step in steps:
        values = [curve[step] for curve in by_seed]
        found.append((step, fmean(values), min(values), max(values)))
    return found


def find_number(content: Any, path: str) -> float:
    """Return the number at a path of keys, indices and entries `[name=value,...]` of lists.

    >>> find_number({"a": [{"d": 0.2, "J": [1, 0.5]}]}, "a[d=0.2].J.1")
    0.5

    Raises:
        LookupError: if nothing is there, or no number.
    """
    try:
        node = _walk(content, path)
        if isinstance(node, bool) or not isinstance(node, int | float):
            raise LookupError("there is no number")
        return float(node)
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:  # of a damaged file
        raise LookupError(f"there is no {path}") from error


def _walk(node: Any, path: str) -> Any:
    for step in re.findall(r"\[[^\]]*\]|[^.\[\]]+", path):
        if step.startswith("["):
            wanted = dict(pair.split("=") for pair in step[1:-1].split(","))
            matches = [e for e in node if all(str(e.get(k)) == v for k, v in wanted.items())]
            if len(matches) != 1:
                raise LookupError(f"{len(matches)} entries are {step}")
            node = matches[0]
        else:
            node = node[int(step)] if isinstance(node, list) else node[step]
    return node

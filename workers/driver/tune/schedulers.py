"""Schedulers of Ray Tune that know the reports under earlier drivers.

A trial's time is its optimizer step, and trials are compared by their best value so far. After any
kill of a driver, the next one brings the reports of ended trials, and the order of an open trial
has its earlier reports, so that no rung is forgotten and none is judged twice. Where a driver was
killed in the moment between a report and the stop that follows from it, the trial trains on.

The two rules are written here, not derived from Tune's: those know nothing of earlier drivers, of a
baseline or of trials that come again, and keep all that in private members.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from eigensweep.common.direction import Better, sign
from eigensweep.protocol.messages import Reports
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.checks.brackets import Brackets
from eigensweep.search_spaces.sections import SchedulerConfig
from eigensweep.workers.processes.runner import LOST

Past = tuple[int, Reports]
"""The number and the reports of a trial that ended under an earlier driver."""


class Rule(FIFOScheduler):
    """Stops a trial that is worse than others, and nobody before one of them is good enough.

    Higher values are better here, whatever the metric: the sign of losses is turned.
    """

    def __init__(self, past: Iterable[Past], better: Better, good_enough: float | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sign = -sign(better)
        self._good_enough = -inf if good_enough is None else self._sign * good_enough
        for number, reports in past:
            self._remember(number, reports)

    @abstractmethod
    def _is_worse(self, number: int, step: int, value: float) -> bool:
        """Return whether to stop a trial that reports a value; it is not recorded yet."""

    @abstractmethod
    def _record(self, number: int, step: int, value: float) -> None:
        """Count a report of a trial."""

    @abstractmethod
    def _forget(self, number: int) -> None:
        """Count no report of a trial any more."""

    def _remember(self, number: int, reports: Reports) -> None:
        for step, value in reports:
            self._record(number, step, self._sign * value)

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        self._remember(trial.order.number, trial.order.reports)

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
        if OBJECTIVE not in result:  # a trial that diverged or failed has none
            return TrialScheduler.CONTINUE
        told = trial.order.number, result["step"], self._sign * result[OBJECTIVE]
        decision = TrialScheduler.STOP if self._is_worse(*told) else TrialScheduler.CONTINUE
        self._record(*told)
        return decision

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Forget a trial whose process was lost: it comes back with its reports."""
        self._forget(trial.order.number)

    def on_trial_complete(self, controller: Any, trial: Any, result: Any) -> None:
        if result.get(LOST):
            self._forget(trial.order.number)
        elif OBJECTIVE in result:
            self._record(trial.order.number, result["step"], self._sign * result[OBJECTIVE])


class Halving(Rule):
    """Stops at each rung all but the best 1 in `factor`, without waiting for others.

    One bracket makes it ASHA (Li et al., MLSys 2020); several, each of which starts to stop trials
    later than the one before, make it asynchronous Hyperband. The bracket of a trial follows from
    its number.
    """

    def __init__(
        self, past: Iterable[Past], brackets: Brackets, better: Better, good_enough: float | None
    ) -> None:
        self._brackets = brackets
        self._reached: defaultdict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        """Values of trials by their numbers, for each bracket and rung."""
        super().__init__(past, better, good_enough)

    def _is_worse(self, number: int, step: int, value: float) -> bool:
        reached = self._find_rung(number, step)
        if reached is None or number in reached or not reached:
            return False
        others = list(reached.values())
        cutoff = np.percentile(others, (1 - 1 / self._brackets.factor) * 100)
        return max(others) > self._good_enough and bool(value < cutoff)

    def _record(self, number: int, step: int, value: float) -> None:
        if (reached := self._find_rung(number, step)) is not None:
            reached.setdefault(number, value)

    def _forget(self, number: int) -> None:
        for reached in self._reached.values():
            reached.pop(number, None)

    def _find_rung(self, number: int, step: int) -> dict[int, float] | None:
        """Return the values at the last rung that a trial has reached; None: at none yet."""
        bracket = self._brackets.choose(number)
        rung = self._brackets.begins[bracket]
        if step < rung:
            return None
        while rung * self._brackets.factor <= step:
            rung *= self._brackets.factor
        return self._reached[bracket, rung]


class Median(Rule):
    """Stops a trial whose best is worse than the median of the others' running means.

    Source: Golovin et al., "Google Vizier", KDD 2017. Others count if they have come as far.
    """

    def __init__(
        self,
        past: Iterable[Past],
        better: Better,
        good_enough: float | None,
        *,
        first: int,
        min_samples: int,
    ) -> None:
        """Stop nobody before step `first`, or beside fewer than `min_samples` others."""
        self._first, self._min_samples = first, min_samples
        self._reports: defaultdict[int, dict[int, float]] = defaultdict(dict)
        """Values of trials by their numbers and steps."""
        self._means: dict[int, dict[int, float]] = {}
        """Running means of all that have come to a step, by that step and their numbers."""
        self._good: dict[int, int] = {}
        """The first steps at which trials were better than good enough, by their numbers."""
        super().__init__(past, better, good_enough)

    def _is_worse(self, number: int, step: int, value: float) -> bool:
        if step < self._first:
            return False
        if step not in self._means:
            self._means[step] = {}
            for other in self._reports:
                self._average(other, step)
        means = [mean for other, mean in self._means[step].items() if other != number]
        if len(means) < self._min_samples:
            return False
        best = max([value, *self._reports.get(number, {}).values()])
        is_any_good = any(at <= step for at in self._good.values())
        return bool(best < np.median(means)) and is_any_good

    def _average(self, number: int, step: int) -> None:
        """Note the mean of a trial's values up to a step, if it has come as far."""
        reports = self._reports[number]
        if max(reports) < step:
            return
        values = [each for at, each in reports.items() if self._first <= at <= step]
        if values:
            self._means[step][number] = float(np.mean(values))

    def _record(self, number: int, step: int, value: float) -> None:
        self._reports[number][step] = value
        if value > self._good_enough:
            self._good[number] = min(step, self._good.get(number, step))
        for at, means in self._means.items():
            if at >= step or number not in means:
                self._average(number, at)

    def _forget(self, number: int) -> None:
        self._reports.pop(number, None)
        self._good.pop(number, None)
        for means in self._means.values():
            means.pop(number, None)


class Rounds(FIFOScheduler):
    """Ends a trial's attempt at each rung from `first` on; the trial then waits for the others.

    The `Sweep` decides which trial goes on from which, and starts it again.
    """

    def __init__(self, first: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._first = first

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
        is_end = result["step"] >= self._first
        return TrialScheduler.STOP if is_end else TrialScheduler.CONTINUE


def make_scheduler(
    settings: SchedulerConfig,
    brackets: Brackets,
    *,
    better: Better,
    baseline: float | None,
    past: Iterable[Past],
) -> TrialScheduler:
    """Return the scheduler of a spec, which compares trials from the first of `brackets` on."""
    first, good_enough = brackets.first, settings.good_enough(baseline, better)
    if settings.name == "median":
        least = settings.min_samples
        return Median(past, better, good_enough, first=first, min_samples=least)
    if settings.name == "none":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    if settings.name == "pbt":
        return Rounds(first)
    return Halving(past, brackets, better, good_enough)

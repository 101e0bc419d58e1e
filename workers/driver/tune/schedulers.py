"""Schedulers of Ray Tune that know the reports under earlier drivers.

A trial's time is its optimizer step, and trials are compared by their best value so far. A driver
is restarted after any kill: ended trials come back as `Past`, and an open trial brings its earlier
reports in its config, so that no rung is forgotten and none is judged twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)
from ray.tune.schedulers.async_hyperband import _Bracket

from eigensweep.common.direction import Better, is_better, sign
from eigensweep.protocol.messages import Reports
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.checks.brackets import Brackets
from eigensweep.search_spaces.sections import SchedulerConfig
from eigensweep.workers.processes.runner import LOST

MODES: dict[Better, str] = {"lower": "min", "higher": "max"}


@dataclass(frozen=True, eq=False)
class Past:
    """A trial that ended under an earlier driver, in the form that schedulers read."""

    number: int
    reports: Reports

    @property
    def trial_id(self) -> str:
        return f"earlier-{self.number}"


class KnowsReports(TrialScheduler):
    """Counts what a trial reported under earlier drivers when the trial goes on."""

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        super().on_trial_add(controller, trial)
        self._remember(trial, trial.order.reports)

    @abstractmethod
    def _remember(self, trial: Any, reports: Reports) -> None:
        """Count these reports of a trial, or of a `Past`."""


class Bracket(_Bracket):
    """The rungs of a bracket. A rung stops trials only after a good enough trial has reached it."""

    good_enough: float = float("-inf")
    """Higher is better here, whatever the metric: Tune turns the sign of losses."""

    def cutoff(self, recorded: dict[str, float]) -> Any:
        if recorded and max(recorded.values()) < self.good_enough:
            return None
        return super().cutoff(recorded)


class Halving(KnowsReports, AsyncHyperBandScheduler):
    """Stops at each rung all but the best 1 in `factor`, without waiting for others.

    One bracket makes it ASHA; several, each of which starts to stop trials later than the one
    before, make it asynchronous Hyperband. The bracket of a trial follows from its number.
    """

    def __init__(
        self,
        past: Iterable[Past],
        brackets: Brackets,
        *,
        better: Better,
        good_enough: float | None,
    ) -> None:
        rungs = {
            "grace_period": brackets.first,
            "max_t": brackets.last + 1,  # so that no trial is stopped for having come to its end
            "reduction_factor": brackets.factor,
        }
        super().__init__(
            time_attr="step", metric=OBJECTIVE, mode=MODES[better], stop_last_trials=False, **rungs
        )
        self._chosen, self._sign = brackets, -sign(better)
        self._halves: list[Bracket] = [
            Bracket(
                brackets.first, brackets.last + 1, brackets.factor, place, stop_last_trials=False
            )
            for place in range(len(brackets.weights))
        ]
        self._brackets = list(self._halves)
        for bracket in self._halves:
            if good_enough is not None:
                bracket.good_enough = self._sign * good_enough
        for trial in past:
            self._remember(trial, trial.reports)

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        super().on_trial_add(controller, trial)
        self._trial_info[trial.trial_id] = self._bracket_of(trial)

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Forget a trial whose process was lost: it comes back with its reports."""
        for _, recorded in self._bracket_of(trial)._rungs:
            recorded.pop(trial.trial_id, None)

    def on_trial_complete(self, controller: Any, trial: Any, result: Any) -> None:
        if result.get(LOST):
            self.on_trial_error(controller, trial)
        else:
            super().on_trial_complete(controller, trial, result)

    def _remember(self, trial: Any, reports: Reports) -> None:
        for step, value in reports:
            self._bracket_of(trial).on_result(trial, step, self._sign * value)

    def _bracket_of(self, trial: Any) -> Bracket:
        is_past = isinstance(trial, Past)
        number = trial.number if is_past else trial.order.number
        return self._halves[self._chosen.choose(number)]


class Median(KnowsReports, MedianStoppingRule):
    """Stops a trial whose best is worse than the median of the others' running means."""

    def __init__(
        self, past: Iterable[Past], *, better: Better, good_enough: float | None, **settings: Any
    ) -> None:
        super().__init__(
            time_attr="step", metric=OBJECTIVE, mode=MODES[better], hard_stop=True, **settings
        )
        self._better, self._good_enough = better, good_enough
        for trial in past:
            self._remember(trial, trial.reports)

    def on_trial_result(self, controller: Any, trial: Any, result: Any) -> str:
        action = super().on_trial_result(controller, trial, result)
        if action == TrialScheduler.STOP and not self._is_any_good(result["step"]):
            self._stopped_trials.discard(trial)
            return TrialScheduler.CONTINUE
        return action

    def _is_any_good(self, step: int) -> bool:
        """Return whether any trial was clearly better than the baseline at or before a step."""
        if self._good_enough is None:
            return True
        seen = (r for reports in self._results.values() for r in reports if r["step"] <= step)
        return any(is_better(r[OBJECTIVE], self._good_enough, self._better) for r in seen)

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Forget a trial whose process was lost: it comes back with its reports."""
        self._results.pop(trial, None)

    def _on_insufficient_samples(self, controller: Any, trial: Any, time: float) -> str:
        """Go on: the default pauses the trial to let others catch up."""
        return TrialScheduler.CONTINUE

    def _remember(self, trial: Any, reports: Reports) -> None:
        if reports:
            self._results[trial] += [{"step": step, OBJECTIVE: value} for step, value in reports]

    def on_trial_complete(self, controller: Any, trial: Any, result: Any) -> None:
        if result.get(LOST):
            self.on_trial_error(controller, trial)
        elif OBJECTIVE in result:  # a trial that diverged or failed has none
            super().on_trial_complete(controller, trial, result)


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
    *,
    better: Better,
    baseline: float | None,
    first_rung: int,
    max_steps: int,
    past: Iterable[Past],
) -> TrialScheduler:
    """Return the scheduler of a spec, for trials that end by themselves at `max_steps`.

    Trials are first compared at `min_steps`, or at `first_rung`.
    """
    first = min(settings.min_steps or first_rung, max_steps)
    good_enough = settings.good_enough(baseline, better)
    if settings.name == "median":
        return Median(
            past,
            better=better,
            good_enough=good_enough,
            grace_period=first,
            min_samples_required=settings.min_samples,
        )
    if settings.name == "none":
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    if settings.name == "pbt":
        return Rounds(first)
    most = settings.brackets if settings.name == "hyperband" else 1
    brackets = Brackets(first, max_steps, settings.reduction_factor, most)
    return Halving(past, brackets, better=better, good_enough=good_enough)

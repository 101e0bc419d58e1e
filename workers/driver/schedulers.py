"""Schedulers of Ray Tune that know what earlier drivers saw.

A trial's time is its optimizer step, and what is compared is the best value so far. A driver is
started anew after any kill: ended trials come back as `Past`, and a trial that goes on brings the
reports it made before in its config, so that no rung is forgotten and none is judged twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    MedianStoppingRule,
    TrialScheduler,
)

from eigensweep.direction import Better
from eigensweep.workers.engine.trainable import LOST
from eigensweep.workers.shared.messages import OBJECTIVE, Json, Order, Reports

MODES: dict[Better, str] = {"lower": "min", "higher": "max"}


@dataclass(frozen=True, eq=False)
class Past:
    """A trial that ended under an earlier driver, as schedulers look at one."""

    trial_id: str
    reports: Reports


class KnowsReports(TrialScheduler):
    """Counts what a trial reported under earlier drivers when the trial goes on."""

    def on_trial_add(self, controller: Any, trial: Any) -> None:
        super().on_trial_add(controller, trial)
        self._remember(trial, Order.from_dict(trial.config).reports)

    @abstractmethod
    def _remember(self, trial: Any, reports: Reports) -> None:
        """Count these reports of a trial, or of a `Past`."""


class Asha(KnowsReports, AsyncHyperBandScheduler):
    """Stops at each rung all but the best 1 in `reduction_factor`, without waiting for others."""

    def __init__(self, past: Iterable[Past], **settings: Any) -> None:
        super().__init__(time_attr="step", metric=OBJECTIVE, **settings)
        for trial in past:
            self._remember(trial, trial.reports)

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Forget a trial whose process was lost: it comes back with its reports."""
        bracket: Any = self._brackets[0]
        for _, recorded in bracket._rungs:
            recorded.pop(trial.trial_id, None)

    def on_trial_complete(self, controller: Any, trial: Any, result: Json) -> None:
        if result.get(LOST):
            self.on_trial_error(controller, trial)
        else:
            super().on_trial_complete(controller, trial, result)

    def _remember(self, trial: Any, reports: Reports) -> None:
        bracket: Any = self._brackets[0]
        sign = -1.0 if self._mode == "min" else 1.0
        for step, value in reports:
            bracket.on_result(trial, step, sign * value)


class Median(KnowsReports, MedianStoppingRule):
    """Stops a trial whose best is worse than the median of the others' running means."""

    def __init__(self, past: Iterable[Past], **settings: Any) -> None:
        super().__init__(
            time_attr="step",
            metric=OBJECTIVE,
            hard_stop=True,
            **settings,
        )
        for trial in past:
            self._remember(trial, trial.reports)

    def on_trial_error(self, controller: Any, trial: Any) -> None:
        """Forget a trial whose process was lost: it comes back with its reports."""
        self._results.pop(trial, None)

    def _on_insufficient_samples(self, controller: Any, trial: Any, time: float) -> str:
        """Go on: the default pauses the trial to let others catch up."""
        return TrialScheduler.CONTINUE

    def _remember(self, trial: Any, reports: Reports) -> None:
        if reports:
            self._results[trial] += [{"step": step, OBJECTIVE: value} for step, value in reports]

    def on_trial_complete(self, controller: Any, trial: Any, result: Json) -> None:
        if result.get(LOST):
            self.on_trial_error(controller, trial)
        elif OBJECTIVE in result:  # a trial that diverged or failed has none
            super().on_trial_complete(controller, trial, result)


def make_scheduler(
    name: Literal["none", "asha", "median"],
    *,
    better: Better,
    min_steps: int,
    max_steps: int,
    reduction_factor: int,
    min_samples: int,
    past: Iterable[Past],
) -> TrialScheduler:
    """Return the scheduler of that name, for trials that end by themselves at `max_steps`."""
    mode = MODES[better]
    if name == "asha":
        return Asha(
            past,
            mode=mode,
            grace_period=min_steps,
            max_t=max_steps + 1,  # so that no trial is stopped for having come to its end
            reduction_factor=reduction_factor,
            stop_last_trials=False,
        )
    if name == "median":
        return Median(past, mode=mode, grace_period=min_steps, min_samples_required=min_samples)
    return FIFOScheduler()  # type: ignore[no-untyped-call]

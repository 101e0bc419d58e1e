"""Computes an experiment's progress and remaining time, from counts alone.

Runs in the service's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eigensweep.protocol.states import DRIVEN, ENDED, OPEN_TRIALS, OUTCOMES, TRIAL_STATES
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.record.views.queries import StateCount

EMPTY = StateCount(0, 0, 0)


@dataclass(frozen=True)
class ExperimentProgress:
    """Trials by state, and optimizer steps: done and expected."""

    total: int | None
    """How many trials the experiment will have; None while that is unknown."""
    trials: dict[str, int]
    steps_done: int
    steps_total: int | None
    """Steps to be expected; a trial that ended early counts with the steps it took."""
    fraction: float | None
    """None while the total is unknown, and while trials are open whose expected steps are done.

    They are evaluated a last time then, or leaders train more seeds in a race."""
    eta_seconds: float | None
    """None while the speed is unknown, while leaders train more seeds, and without a driver."""


def compute_progress(
    experiment: ExperimentRow, counts: Mapping[str, StateCount], now: float
) -> ExperimentProgress:
    """Return the progress of an experiment whose trials have these counts by state."""
    trials = {str(state): counts.get(state, EMPTY).trials for state in TRIAL_STATES}
    # A reused trial costs nothing here: its steps were done elsewhere.
    worked = {state: count for state, count in counts.items() if state != "reused"}
    done = sum(count.step for count in worked.values())
    is_over = experiment.state in ENDED
    left = 0 if is_over else _steps_left(experiment, counts, sum(trials.values()))
    total = None if left is None else done + left
    is_at_end = left == 0 and any(trials[state] for state in OPEN_TRIALS)
    if is_over and experiment.state == "completed":
        fraction: float | None = 1.0
    elif is_at_end:
        fraction = None
    else:
        fraction = _fraction(experiment, trials, done, total)
    return ExperimentProgress(
        total=experiment.total,
        trials=trials,
        steps_done=done,
        steps_total=total,
        fraction=fraction,
        eta_seconds=(
            None
            if experiment.state not in DRIVEN or is_at_end or left is None
            else _eta(experiment, done, left, now)
        ),
    )


def _steps_left(
    experiment: ExperimentRow, counts: Mapping[str, StateCount], opened: int
) -> int | None:
    still_open = sum(
        counts.get(state, EMPTY).steps - counts.get(state, EMPTY).step for state in OPEN_TRIALS
    )
    if experiment.total is None:
        return None
    to_come = max(0, experiment.total - opened)
    if to_come == 0:
        return still_open
    typical = _typical_steps(experiment, counts)
    return None if typical is None else still_open + round(to_come * typical)


def _typical_steps(experiment: ExperimentRow, counts: Mapping[str, StateCount]) -> float | None:
    """Return the mean number of steps of a trial: of those that ended, else by the budget."""
    over = {state: count for state, count in counts.items() if state in OUTCOMES - {"invalid"}}
    if trials := sum(count.trials for count in over.values()):
        return sum(c.step for state, c in over.items() if state != "reused") / trials
    if experiment.trial_steps is not None:
        return experiment.trial_steps
    opened = sum(count.trials for count in counts.values())
    return sum(count.steps for count in counts.values()) / opened if opened else None


def _fraction(
    experiment: ExperimentRow, trials: Mapping[str, int], done: int, total: int | None
) -> float | None:
    if experiment.state in ENDED:
        ended = sum(trials[state] for state in OUTCOMES - {"cancelled"})
        return min(1.0, ended / experiment.total) if experiment.total else None
    if total is None:
        return None
    return done / total if total else 0.0


def _eta(experiment: ExperimentRow, done: int, left: int, now: float) -> float | None:
    if left == 0:
        return 0.0
    since = done - experiment.claimed_steps
    if experiment.claimed_at is None or since <= 0 or now <= experiment.claimed_at:
        return None
    return left * (now - experiment.claimed_at) / since

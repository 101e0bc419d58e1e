"""Steps that several changes of the record share: events, and the ends of trials and experiments.

Runs in the service's process and in drivers.
"""

from __future__ import annotations

import math
import time
from typing import Any, Unpack

from sqlalchemy import select
from sqlalchemy.orm import Session

from eigensweep.direction import sign
from eigensweep.service.record.tables import (
    UNRANKED,
    Attempt,
    Event,
    EventDetails,
    Experiment,
    KindDetails,
    Trial,
)
from eigensweep.workers.shared.messages import Json
from eigensweep.workers.shared.states import (
    ENDED,
    OPEN_TRIALS,
    RANKED,
    ExperimentEnd,
    Outcome,
    may_follow,
)


def replace_non_finite(content: Any) -> Any:
    """Return JSON content with None for every number that is not finite.

    >>> replace_non_finite({"loss": float("nan"), "steps": [1, float("inf")]})
    {'loss': None, 'steps': [1, None]}
    """
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, dict):
        return {str(name): replace_non_finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [replace_non_finite(value) for value in content]
    return content


def remove_nul(text: str | None) -> str | None:
    """Return text without NUL, the one character that PostgreSQL cannot store."""
    return None if text is None else text.replace("\0", "")


def emit(session: Session, experiment: Experiment, kind: str, **data: Unpack[EventDetails]) -> None:
    """Add an event to the transaction that makes the change it reports."""
    session.add(
        Event(
            experiment_id=experiment.id,
            kind=kind,
            data={"experiment": experiment.id, **replace_non_finite(data)},
            at=time.time(),
        )
    )


def emit_trial(
    session: Session,
    experiment: Experiment,
    trial: Trial,
    kind: str,
    **data: Unpack[KindDetails],
) -> None:
    """Add an event of a trial, with its arm, attempt and step, and with `data` of its kind."""
    details: EventDetails = {
        "trial": trial.number,
        "arm": trial.arm,
        "step": trial.step,
        "steps": trial.steps,
        "attempt": trial.attempt,
        **data,
    }
    emit(session, experiment, f"trial.{kind}", **details)


def finish_trial(
    session: Session,
    experiment: Experiment,
    trial: Trial,
    outcome: Outcome,
    result: Json | None = None,
    error: str | None = None,
) -> None:
    """Give an open trial its outcome, its result and its place in the ranking."""
    trial.state = outcome
    trial.result = replace_non_finite(result)
    trial.error = remove_nul(error)
    trial.ended_at = time.time()
    if trial.result is not None:
        trial.value = trial.result.get("value")
        trial.step = max(trial.step, int(trial.result.get("step") or 0))
    if outcome in RANKED and trial.value is not None:
        trial.rank = sign(experiment.better) * trial.value
    else:
        trial.rank = UNRANKED
    close_attempt(session, trial, None)
    last_line = None if error is None else error.strip().rsplit("\n", 1)[-1]
    emit_trial(session, experiment, trial, outcome, value=trial.value, error=last_line)


def close_attempt(session: Session, trial: Trial, reason: str | None) -> None:
    """Record that the trial's newest attempt is over; `reason`: why it ended early, if it did."""
    attempt = session.get(Attempt, (trial.experiment_id, trial.number, trial.attempt))
    if attempt is not None and attempt.ended_at is None:
        attempt.ended_at = time.time()
        attempt.reason = remove_nul(reason)


def end_experiment(
    session: Session, experiment: Experiment, state: ExperimentEnd, error: str | None
) -> bool:
    """End an experiment, cancel what is open in it; return False if it was over already."""
    if experiment.state in ENDED:
        return False
    assert may_follow(experiment.state, state)
    still_open = select(Trial).where(
        Trial.experiment_id == experiment.id, Trial.state.in_(OPEN_TRIALS)
    )
    for trial in session.scalars(still_open.order_by(Trial.number)):
        finish_trial(session, experiment, trial, "cancelled", trial.result)
    experiment.state = state
    experiment.error = remove_nul(error)
    experiment.finished_at = time.time()
    emit(session, experiment, f"experiment.{state}", error=experiment.error)
    return True

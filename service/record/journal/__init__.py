"""Steps that several changes of the record share: events, and the ends of trials and experiments.

Runs in the service's process and in drivers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, Final, Unpack, cast
from uuid import uuid4

from sqlalchemy import select, update

from eigensweep.protocol import states
from eigensweep.protocol.ledger import error_of_undone
from eigensweep.protocol.messages import ConfigJson, Notice, NoticeKind
from eigensweep.results.ranking import RANKED, UNRANKED, cost
from eigensweep.results.trial_result import Outcome
from eigensweep.service.record.errors import ConflictError
from eigensweep.service.record.journal.usage import count_use
from eigensweep.service.record.sql.rows import RowSession, to_storable
from eigensweep.service.record.sql.tables import (
    AttemptRow,
    EarlierJson,
    EventDetails,
    EventRow,
    ExperimentRow,
    JobRow,
    ResultJson,
    TrialCount,
    TrialRow,
    Webhook,
)
from eigensweep.service.record.sql.walks import choose, is_in, walk

LONGEST_ERROR: Final = 10_000
"""Letters of an error that an event has; the trial, or the experiment, has all of it."""

LASTING: Final[tuple[NoticeKind, ...]] = ("code", "limit")
"""The notices that stay when an experiment is over: they are about its results."""

_OPEN: Final = choose(is_in(states.OPEN_TRIALS))


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


def emit(rows: RowSession, experiment: ExperimentRow, kind: str, **data: Any) -> None:
    """Add an event to the transaction that makes the change it reports."""
    rows.add(
        EventRow(
            experiment_id=experiment.id,
            kind=kind,
            data={"experiment": experiment.id, **replace_non_finite(data)},
            at=time.time(),
        )
    )


def emit_trial(
    rows: RowSession,
    experiment: ExperimentRow,
    trial: TrialRow,
    kind: str,
    **data: Unpack[EventDetails],
) -> None:
    """Add an event of a trial, with its arm, attempt and step, and with `data` of its kind."""
    emit(
        rows,
        experiment,
        f"trial.{kind}",
        trial=trial.number,
        arm=trial.arm,
        step=trial.step,
        steps=trial.steps,
        attempt=trial.attempt,
        **data,
    )


def move_experiment(
    rows: RowSession,
    experiment: ExperimentRow,
    following: states.ExperimentState,
    **data: Unpack[EventDetails],
) -> None:
    """Move an experiment to another state, and write the event of this move.

    Raises:
        ConflictError: if this state may not follow.
    """
    kind = states.EXPERIMENT_MOVES[experiment.state].get(following)
    if kind is None:
        raise ConflictError(f"an experiment that is {experiment.state} cannot become {following}")
    experiment.state = following
    if following in states.ENDED:
        keep_notices(experiment, *LASTING)
    elif following in ("queued", "paused", "deleting"):
        keep_notices(experiment, "code", "failures" if following == "paused" else "code")
    if following in states.ENDED or following in ("paused", "waiting_for_room"):
        experiment.left_at = experiment.left_at or time.time()
    elif following in ("starting", "running") and experiment.left_at is not None:
        if experiment.started_at is not None:
            experiment.idle_seconds += max(0.0, time.time() - experiment.left_at)
        experiment.left_at = None
    emit(rows, experiment, f"experiment.{kind}", **data)


def keep_notices(experiment: ExperimentRow, *kinds: NoticeKind) -> None:
    """Drop all notices of an experiment but those of some kinds."""
    experiment.notices = [n for n in experiment.notices or () if n["kind"] in kinds] or None


def record_notices(rows: RowSession, experiment: ExperimentRow, notices: Sequence[Notice]) -> None:
    """Replace the notices of an experiment, with an event if they are others than before.

    Once it is over, what its driver said of its result stays.
    """
    told = [notice.to_dict() for notice in notices]
    if experiment.state in states.ENDED:
        told = [*(n for n in experiment.notices or () if n["kind"] in LASTING), *told]
    if told != (experiment.notices or []):
        experiment.notices = told or None
        reason = "; ".join(notice.words for notice in notices) or None
        emit(rows, experiment, "experiment.notice", reason=to_storable(reason))


def move_trial(trial: TrialRow, following: states.TrialState) -> str:
    """Move a trial to another state; return the kind of this move's event.

    Raises:
        ConflictError: if this state may not follow.
    """
    state = trial.state or "waiting"  # a new one, which is not written yet
    kind = states.TRIAL_MOVES[state].get(following)
    if kind is None:
        raise ConflictError(f"a trial that is {state} cannot become {following}")
    trial.state = following
    return kind


def finish_trial(
    rows: RowSession,
    experiment: ExperimentRow,
    trial: TrialRow,
    outcome: Outcome,
    result: ResultJson | None = None,
    error: str | None = None,
) -> None:
    """Give an open trial its outcome, its result and its place in the ranking.

    A reopened trial that failed or was cancelled gets its earlier end back.
    """
    close_attempt(rows, trial, None)
    if (before := trial.earlier) is not None:
        trial.earlier, trial.tracked = None, False
        if states.brings_back(before["state"], outcome):
            _bring_back(rows, experiment, trial, before, outcome, error)
            return
        trial.tier -= (trial.replicates or 1) - before["config"].get("replicates", 1)
    kind = move_trial(trial, outcome)
    trial.result = replace_non_finite(result)
    trial.error = to_storable(error)
    trial.ended_at = time.time()
    if trial.result is not None:
        trial.value = trial.result.get("value")
        step = _last_step(trial.result)
        is_final = outcome in RANKED or outcome == "diverged"  # else it had come further
        trial.step = step if is_final and step else max(trial.step, step)
    trial.rank = cost(trial.value if outcome in RANKED else None, experiment.better)
    if trial.rank == UNRANKED:
        trial.tier = 0
    emit_trial(rows, experiment, trial, kind, value=trial.value, error=_last_line(error))


def reopen_trial(
    rows: RowSession, experiment: ExperimentRow, trial: TrialRow, config: ConfigJson, reason: str
) -> None:
    """Move an ended trial back to `waiting`, to be trained as `config` says.

    Its result, value and rank stay until it ends again.
    """
    trial.earlier = EarlierJson(
        state=cast(Outcome, trial.state),
        config=trial.config or {},
        error=trial.error,
        ended_at=trial.ended_at,
        reason=reason,
    )
    _configure(trial, config)
    kind = move_trial(trial, "waiting")
    trial.error, trial.ended_at, trial.tracked = None, None, False
    emit_trial(rows, experiment, trial, kind, reason=reason)


def _bring_back(
    rows: RowSession,
    experiment: ExperimentRow,
    trial: TrialRow,
    before: EarlierJson,
    outcome: Outcome,
    error: str | None,
) -> None:
    """Give an open trial the end back that it had before it was reopened."""
    kept = error_of_undone(before["error"], before["reason"], outcome, error)
    move_trial(trial, before["state"])
    trial.error, trial.ended_at = to_storable(kept), before["ended_at"]
    if (trial.ended_at or 0.0) < (trial.started_at or 0.0):  # it began only after that
        trial.ended_at = time.time()
    _configure(trial, before["config"])
    result = trial.result if trial.state in RANKED else None
    most = trial.steps if result is None else _last_step(result)
    trial.step = min(trial.step, most or trial.step)
    why = f"{outcome}: {_last_line(error)}" if error else outcome
    emit_trial(rows, experiment, trial, "kept", value=trial.value, reason=to_storable(why))


def _last_step(result: ResultJson) -> int:
    """Return the last step of a result and of its seeds."""
    seeds: Any = result.get("by_replicate") or ()
    return max(int(each.get("step") or 0) for each in (result, *seeds))


def _configure(trial: TrialRow, config: ConfigJson) -> None:
    """Give a trial another number of seeds, or another budget."""
    trial.config = replace_non_finite(config)
    trial.replicates, trial.steps = config.get("replicates", 1), budget_of(config)


def budget_of(config: ConfigJson) -> int:
    """Return the optimizer steps of a configuration, 0 if it has none."""
    return int(config.get("training", {}).get("steps") or 0)


def spent_seconds(experiment: ExperimentRow, now: float) -> float:
    """Return the seconds that an experiment was at work: no pause, end, or wait for a place."""
    if experiment.started_at is None:
        return 0.0
    spent = (experiment.left_at or now) - experiment.started_at - experiment.idle_seconds
    return max(0.0, spent)  # a clock may have been set back


def _last_line(error: str | None) -> str | None:
    return None if error is None else error.strip().rsplit("\n", 1)[-1][:LONGEST_ERROR]


def interrupt_trial(
    rows: RowSession, experiment: ExperimentRow, trial: TrialRow, reason: str
) -> None:
    """Move a running trial back to `waiting`: its attempt is over."""
    kind = move_trial(trial, "waiting")
    close_attempt(rows, trial, reason)
    emit_trial(rows, experiment, trial, kind, reason=to_storable(reason))


def close_attempt(rows: RowSession, trial: TrialRow, reason: str | None) -> None:
    """Record that the trial's newest attempt is over; `reason`: why it ended early, if it did."""
    if not trial.attempt:
        return
    attempt = rows.get(AttemptRow, (trial.experiment_id, trial.number, trial.attempt))
    if attempt is not None and attempt.ended_at is None:
        count_use(rows, trial, attempt)
        attempt.ended_at = time.time()
        attempt.reason = to_storable(reason)


def end_experiment(
    rows: RowSession, experiment: ExperimentRow, state: states.ExperimentEnd, error: str | None
) -> bool:
    """End an experiment and cancel its open trials; return False if it was over already."""
    if experiment.state in states.ENDED:
        return False
    rows.flush()  # its events come before those of the trials
    for part, trial in walk(rows, _OPEN, experiment.id):
        finish_trial(part, experiment, trial, "cancelled", trial.result)
    experiment.error = to_storable(error)
    told = experiment.error and experiment.error[-LONGEST_ERROR:]
    move_experiment(rows, experiment, state, error=told)
    experiment.finished_at = time.time()
    _tell_webhooks(rows, experiment, state, told)
    return True


def reopen_experiment(rows: RowSession, experiment: ExperimentRow, reason: str) -> None:
    """Queue a finished experiment again; from now on writes of its drivers are refused.

    The notes of samplers are deleted, as space and budget may have changed.
    """
    move_experiment(rows, experiment, "queued", reason=reason)
    experiment.generation += 1
    experiment.edition += 1
    experiment.deaths, experiment.archived_at, experiment.stops = 0, None, None
    experiment.error, experiment.finished_at, experiment.tracked = None, None, False
    noted = TrialRow.experiment_id == experiment.id, TrialRow.sampler_state.is_not(None)
    rows.execute(update(TrialRow).where(*noted).values(sampler_state=None))


def _tell_webhooks(
    rows: RowSession, experiment: ExperimentRow, end: states.ExperimentEnd, error: str | None
) -> None:
    """Write a message to each webhook of an experiment; the service's process sends it.

    It says how the experiment ended now: it may have been taken up again when it is sent.
    """
    now = time.time()
    urls = rows.execute(select(Webhook.url).where(Webhook.experiment_id == experiment.id))
    if not (found := urls.scalars().all()):
        return
    rows.flush()
    counted = select(TrialCount.state, TrialCount.trials).order_by(TrialCount.state)
    counted = counted.where(TrialCount.experiment_id == experiment.id, TrialCount.trials > 0)
    trials = {state: count for state, count in rows.execute(counted)}
    told = {"type": f"experiment.{end}", "error": error, "trials": trials}
    for url in found:
        message = JobRow(kind="webhook", key=uuid4().hex, created_at=now, due_at=now)
        message.request = {"url": url, **told}
        message.experiment_id, message.owner = experiment.id, experiment.owner
        rows.add(message)

"""What trials have used: seconds of their processes, and of the devices that they occupied.

Usage is counted when an attempt reports or ends, in the same transaction, and summed up in the rows
of the trial and its experiment, so that no list has to read attempts. Runs in the service's process
and in drivers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Row, bindparam, func, select

from eigensweep.protocol.messages import SpecJson
from eigensweep.search_spaces.lanes import count_members
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import AttemptRow, ExperimentRow, TrialRow

_RUNNING: Final = select(AttemptRow.__table__).where(
    AttemptRow.experiment_id == bindparam("id"), AttemptRow.ended_at.is_(None)
)
LEAP_SECONDS: Final = 60.0
"""By how much a clock leaps at least where its machine was suspended, or somebody set it."""
_leads: Final[dict[tuple[str, int], float]] = {}
"""How far the clock is ahead of `time.monotonic`, for each experiment and generation that this
process drives."""


def devices_of(spec: SpecJson, lanes: int | None = None) -> tuple[float, float]:
    """Return CPUs and GPUs that a trial occupies; `lanes` are those of the engine that trains it.

    Trials that share an engine have equal parts of its devices.

    >>> devices_of({"resources": {"cpus": 2, "gpus": 1}})
    (2.0, 1.0)
    >>> devices_of({"resources": {"cpus": 1, "gpus": 1, "lanes": 4}})
    (0.2, 0.2)
    """
    resources = spec.get("resources") or {}
    asked = resources.get("lanes")
    number = lanes if asked == "auto" else asked
    members = 1 if number is None else count_members(number, spec.get("replicates") or 1)
    cpus, gpus = resources.get("cpus", 1.0), resources.get("gpus", 0.0)
    return float(cpus) / members, float(gpus) / members


def leave_out(rows: RowSession, experiment: ExperimentRow, since: float, reason: str) -> None:
    """Count no time in which an experiment had no driver: since then, or since it was heard last.

    Its attempts have ended with the driver, for that reason.
    """
    attempts = rows.get_all(AttemptRow, _RUNNING, {"id": experiment.id})
    heard = (each.counted_at or each.started_at for each in attempts)
    last = max(since, experiment.claimed_at or 0.0, *heard)
    if experiment.left_at is None:
        experiment.idle_seconds += max(0.0, time.time() - last)
    for attempt in attempts:
        trial = rows.get_one(TrialRow, (experiment.id, attempt.number))
        count_use(rows, trial, attempt, last)
        attempt.ended_at, attempt.reason = last, reason


def leave_out_leap(rows: RowSession, experiment: ExperimentRow) -> None:
    """Count no time that the clock of this driver leapt over since the driver's last write.

    A suspended machine does no work, and `time.monotonic` stands still there.
    """
    lead = time.time() - time.monotonic()
    key = experiment.id, experiment.generation
    leap = lead - _leads.setdefault(key, lead)
    waits = experiment.state == "waiting_for_room"
    if abs(leap) < LEAP_SECONDS or (experiment.left_at is not None and not waits):
        return
    _leads[key] = lead
    experiment.idle_seconds += leap
    if experiment.left_at is not None:
        experiment.left_at += leap
    experiment.claimed_at = (experiment.claimed_at or 0.0) + leap
    for attempt in rows.get_all(AttemptRow, _RUNNING, {"id": experiment.id}):
        attempt.counted_at = (attempt.counted_at or attempt.started_at) + leap
    rows.flush()  # trials are also read in parts


def count_use(
    rows: RowSession, trial: TrialRow, attempt: AttemptRow, until: float | None = None
) -> None:
    """Add the time since this attempt was counted last to its trial and its experiment.

    It is counted `until` then, in seconds since 1970; None: until now.
    """
    now = time.time() if until is None else until
    seconds = max(0.0, now - (attempt.counted_at or attempt.started_at))
    attempt.counted_at = max(now, attempt.counted_at or now)  # the clock may have been set back
    experiment = rows.get_one(ExperimentRow, trial.experiment_id)
    cpus, gpus = devices_of(experiment.spec, (attempt.place or {}).get("lanes"))
    for row in (trial, experiment):
        row.trial_seconds += seconds
        row.cpu_seconds += seconds * cpus
        row.gpu_seconds += seconds * gpus


def sum_by_user(url: str) -> Sequence[Row[str, int, float, float, float]]:
    """Return what each user's experiments have used, by name.

    A `user` has `experiments`, whose trials had processes for `trial_seconds`, and occupied devices
    for `cpu_seconds` and `gpu_seconds`.

    Raises:
        SQLAlchemyError: if the database does not answer.
    """
    query = select(
        ExperimentRow.owner.label("user"),
        func.count().label("experiments"),
        func.sum(ExperimentRow.trial_seconds).label("trial_seconds"),
        func.sum(ExperimentRow.cpu_seconds).label("cpu_seconds"),
        func.sum(ExperimentRow.gpu_seconds).label("gpu_seconds"),
    )
    query = query.group_by(ExperimentRow.owner).order_by(ExperimentRow.owner)
    return database.look(url, lambda connection: connection.execute(query).all())

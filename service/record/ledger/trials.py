"""What a driver writes of its trials."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import cast
from uuid import uuid4

from eigensweep.protocol.ledger import NOTHING, RungReport, StaleWriteError
from eigensweep.protocol.messages import ConfigJson, Params, Place, Takeover
from eigensweep.protocol.states import OUTCOMES
from eigensweep.results.trial_result import Metrics, Outcome, Result
from eigensweep.service.record import journal
from eigensweep.service.record.journal.usage import count_use
from eigensweep.service.record.ledger.part import LedgerPart, writes, writes_relaxed
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import (
    AttemptRow,
    ExperimentRow,
    ReportRow,
    ResultJson,
    TrialRow,
)


class TrialWrites(LedgerPart):
    """Trials as they are opened, begin, report and end."""

    @writes_relaxed
    def open(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        number: int,
        arm: str,
        params: Params,
        config: ConfigJson,
        config_hash: str,
        sampler_state: dict[str, object] = NOTHING,
        error: str | None = None,
    ) -> None:
        if rows.get(TrialRow, (self.experiment_id, number)) is not None:
            return
        trial = TrialRow(
            experiment_id=self.experiment_id,
            number=number,
            arm=arm,
            params=journal.replace_non_finite(params),
            config=journal.replace_non_finite(config) or None,
            config_hash=config_hash or None,
            seed=config.get("seed", 0) if config else None,
            replicates=config.get("replicates", 1) if config else None,
            steps=journal.budget_of(config),
            step=0,
            attempt=0,
            sampler_state=sampler_state or None,
        )
        rows.add(trial)
        if error is not None:
            journal.finish_trial(rows, experiment, trial, "invalid", None, error)

    def begin(self, number: int, place: Place | None = None) -> int:
        return self._begin(number, place, uuid4().hex)

    @writes
    def _begin(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        number: int,
        place: Place | None,
        token: str,
    ) -> int:
        trial = self.get_trial(rows, number)
        key = self.experiment_id, number, trial.attempt
        newest = rows.get(AttemptRow, key) if trial.attempt else None
        if newest is not None and newest.token == token:
            return trial.attempt  # committed before, and the answer was lost
        if trial.state in OUTCOMES:
            raise StaleWriteError(f"trial {number} has ended already: {trial.state}")
        journal.close_attempt(rows, trial, "its driver was lost")
        kind = journal.move_trial(trial, "running")
        trial.attempt += 1
        trial.started_at = trial.started_at or time.time()
        started = AttemptRow(
            experiment_id=self.experiment_id,
            number=number,
            attempt=trial.attempt,
            started_at=time.time(),
            token=token,
            place={} if place is None else place.to_dict(),
        )
        rows.add(started)
        if experiment.state in ("starting", "waiting_for_room"):
            journal.move_experiment(rows, experiment, "running")
        journal.emit_trial(rows, experiment, trial, kind, params=trial.params)
        return trial.attempt

    @writes
    def interrupt(
        self, rows: RowSession, experiment: ExperimentRow, number: int, attempt: int, reason: str
    ) -> None:
        trial = self.get_trial(rows, number, attempt)
        if trial.state == "running":
            journal.interrupt_trial(rows, experiment, trial, reason)

    @writes_relaxed
    def report(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        number: int,
        attempt: int,
        step: int,
        metrics: Metrics,
        place: Place | None,
    ) -> None:
        trial = self.get_trial(rows, number, attempt)
        _report(rows, experiment, trial, attempt, RungReport(step, metrics, place))

    @writes_relaxed
    def finish(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        number: int,
        attempt: int,
        outcome: Outcome,
        result: Result | None = None,
        error: str | None = None,
        last: RungReport | None = None,
    ) -> None:
        trial = self.get_trial(rows, number, attempt)
        if last is not None:
            _report(rows, experiment, trial, attempt, last)
        if trial.state not in OUTCOMES:
            content = None if result is None else cast(ResultJson, result.to_dict())
            journal.finish_trial(rows, experiment, trial, outcome, content, error)

    @writes
    def reopen(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        number: int,
        config: ConfigJson,
        reason: str,
    ) -> None:
        trial = self.get_trial(rows, number)
        if trial.state in OUTCOMES:
            journal.reopen_trial(rows, experiment, trial, config, reason)

    @writes
    def end_round(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        step: int,
        takeovers: Mapping[int, Takeover],
    ) -> None:
        if experiment.round_step >= step:
            return  # committed before, and the answer was lost
        experiment.round_step = step
        for number, taken in sorted(takeovers.items()):
            trial = self.get_trial(rows, number)
            trial.lineage = [*(trial.lineage or []), taken.to_dict()]
            trial.step = step
            source, params = taken.source, taken.params
            journal.emit_trial(rows, experiment, trial, "replaced", source=source, params=params)

    @writes
    def set_total(self, rows: RowSession, experiment: ExperimentRow, trials: int | None) -> None:
        experiment.total = trials


def _report(
    rows: RowSession, experiment: ExperimentRow, trial: TrialRow, attempt: int, told: RungReport
) -> None:
    key = trial.experiment_id, trial.number
    started = rows.get(AttemptRow, (*key, attempt))
    if started is not None and told.place is not None:
        started.place = told.place.to_dict()
    is_auto = (experiment.spec.get("resources") or {}).get("lanes") == "auto"
    if started is not None and started.ended_at is None:
        # Only a place says how many lanes were chosen, and so what part of a device was used.
        has_lanes = (started.place or {}).get("lanes") is not None
        if not is_auto or has_lanes or told.place is not None:
            count_use(rows, trial, started)
    known = rows.get(ReportRow, (*key, told.step))
    if trial.state in OUTCOMES or known is not None:
        return
    found = journal.replace_non_finite(told.metrics)
    kept = {name: value for name, value in found.items() if value is not None}
    trial.step = max(trial.step, told.step)
    if not kept:
        return
    report = ReportRow(
        experiment_id=trial.experiment_id,
        number=trial.number,
        step=told.step,
        attempt=attempt,
        metrics=kept,
        at=time.time(),
    )
    rows.add(report)
    journal.emit_trial(rows, experiment, trial, "report", metrics=kept)

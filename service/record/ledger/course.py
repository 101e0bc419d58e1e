"""The course of an experiment: what its driver is told and says of it, its pause and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from eigensweep.service.record import database, journal, shares
from eigensweep.service.record.journal import end_experiment, interrupt_trial, move_experiment
from eigensweep.service.record.ledger.part import LedgerPart, writes
from eigensweep.service.record.tables import ExperimentRow, TrialRow
from eigensweep.workers.shared.fair_shares import Allotment, Demand
from eigensweep.workers.shared.ledger import PAUSED, ResumeState
from eigensweep.workers.shared.messages import Notice
from eigensweep.workers.shared.states import (
    DRIVEN,
    ENDED,
    EXPERIMENT_MOVES,
    ExperimentEnd,
    Intent,
    Phase,
    intent_of,
)

CLOSED = "it was cancelled before; then its failed trials were tried again"
"""Why an experiment is cancelled whose failed trials were tried again."""


class CourseWrites(LedgerPart):
    """How the experiment stands, what it wants of the cluster, and how it ends."""

    @database.reading
    def intent(self, session: Session) -> Intent:
        """Return what the person wants of this experiment now.

        Raises:
            StaleWriteError: if this driver has a successor; so it learns of it while idle.
        """
        mine = ExperimentRow.id == self.experiment_id
        columns = select(ExperimentRow.state, ExperimentRow.generation).where(mine)
        state, generation = session.execute(columns).one()
        self.check_generation(generation)
        return intent_of(state)

    @database.reading
    def resume_state(self, session: Session) -> ResumeState:
        experiment = session.get_one(ExperimentRow, self.experiment_id)
        spent = journal.spent_seconds(experiment, time.time())
        return ResumeState(experiment.edition, experiment.closed, spent, experiment.owner)

    @writes
    def record_phase(self, session: Session, experiment: ExperimentRow, phase: Phase) -> None:
        if phase in EXPERIMENT_MOVES[experiment.state]:
            move_experiment(session, experiment, phase)

    @writes
    def record_notices(
        self, session: Session, experiment: ExperimentRow, notices: Sequence[Notice]
    ) -> None:
        is_of_delivery = all(notice.kind == "delivery" for notice in notices)
        if experiment.state in DRIVEN or (experiment.state in ENDED and is_of_delivery):
            journal.record_notices(session, experiment, notices)

    @writes
    def record_demand(self, session: Session, experiment: ExperimentRow, demand: Demand) -> None:
        shares.record_demand(session, experiment, demand)

    def find_allotment(self) -> Allotment:
        mine = select(ExperimentRow.wants).where(ExperimentRow.id == self.experiment_id)
        wants = database.look(self.url, lambda c: c.scalar(mine), self.patience)
        return shares.read_allotment(wants) or Allotment()

    @writes
    def request_pause(self, session: Session, experiment: ExperimentRow, reason: str) -> None:
        if "pausing" in EXPERIMENT_MOVES[experiment.state]:
            move_experiment(session, experiment, "pausing", reason=reason)

    @writes
    def pause(self, session: Session, experiment: ExperimentRow) -> bool:
        if experiment.state == "pausing":
            mine = TrialRow.experiment_id == self.experiment_id, TrialRow.state == "running"
            for trial in session.scalars(select(TrialRow).where(*mine).order_by(TrialRow.number)):
                interrupt_trial(session, experiment, trial, PAUSED)
            move_experiment(session, experiment, "paused")
        return experiment.state == "paused"

    @writes
    def end(
        self,
        session: Session,
        experiment: ExperimentRow,
        state: ExperimentEnd,
        error: str | None = None,
    ) -> ExperimentEnd:
        # A person who was told that it is cancelled does not find it completed.
        was_cancelled = experiment.state == "cancelling" or experiment.closed
        recorded = "cancelled" if state == "completed" and was_cancelled else state
        words = CLOSED if experiment.closed and recorded == "cancelled" else None
        end_experiment(session, experiment, recorded, error or words)
        return recorded

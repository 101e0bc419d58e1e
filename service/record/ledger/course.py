"""The course of an experiment: what its driver is told and says of it, its pause and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from eigensweep.protocol import states
from eigensweep.protocol.fair_shares import Allotment, Demand
from eigensweep.protocol.ledger import PAUSED, Ended, ResumeState
from eigensweep.protocol.messages import Notice
from eigensweep.service.record import journal
from eigensweep.service.record.journal import end_experiment, interrupt_trial, move_experiment
from eigensweep.service.record.ledger.part import LedgerPart, writes
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.record.sql.walks import choose, is_in, walk
from eigensweep.service.record.users import shares

CLOSED = "it was cancelled before; then its failed trials were tried again"
"""Why an experiment is cancelled whose failed trials were tried again."""

_RUNNING = choose(is_in(["running"]))


class CourseWrites(LedgerPart):
    """How the experiment stands, what it wants of the cluster, and how it ends."""

    @database.reading
    def intent(self, session: Session) -> states.Intent:
        """Return what the person wants of this experiment now.

        Raises:
            StaleWriteError: if this driver has a successor; so it learns of it while idle.
        """
        mine = ExperimentRow.id == self.experiment_id
        columns = select(ExperimentRow.state, ExperimentRow.generation).where(mine)
        state, generation = session.execute(columns).one()
        self.check_generation(generation)
        return states.intent_of(state)

    def find_stops(self) -> frozenset[int]:
        mine = select(ExperimentRow.stops).where(ExperimentRow.id == self.experiment_id)
        return frozenset(database.look(self.url, lambda c: c.scalar(mine), self.patience) or ())

    @database.reading
    def resume_state(self, session: Session) -> ResumeState:
        experiment = session.get_one(ExperimentRow, self.experiment_id)
        spent = journal.spent_seconds(experiment, time.time())
        ended = find_end(experiment)
        return ResumeState(experiment.edition, experiment.closed, spent, experiment.owner, ended)

    @writes
    def record_phase(
        self, rows: RowSession, experiment: ExperimentRow, phase: states.Phase
    ) -> None:
        if phase in states.EXPERIMENT_MOVES[experiment.state]:
            move_experiment(rows, experiment, phase)

    @writes
    def record_notices(
        self, rows: RowSession, experiment: ExperimentRow, notices: Sequence[Notice]
    ) -> None:
        is_of_delivery = all(notice.kind == "delivery" for notice in notices)
        if experiment.state in states.DRIVEN or (
            experiment.state in states.ENDED and is_of_delivery
        ):
            journal.record_notices(rows, experiment, notices)

    @writes
    def record_demand(self, rows: RowSession, experiment: ExperimentRow, demand: Demand) -> None:
        shares.record_demand(rows, experiment, demand)

    def find_allotment(self) -> Allotment:
        mine = select(ExperimentRow.wants).where(ExperimentRow.id == self.experiment_id)
        wants = database.look(self.url, lambda c: c.scalar(mine), self.patience)
        return shares.read_allotment(wants) or Allotment()

    @writes
    def request_pause(self, rows: RowSession, experiment: ExperimentRow, reason: str) -> None:
        if "pausing" in states.EXPERIMENT_MOVES[experiment.state]:
            move_experiment(rows, experiment, "pausing", reason=reason)

    @writes
    def pause(self, rows: RowSession, experiment: ExperimentRow) -> bool:
        if experiment.state == "pausing":
            for part, trial in walk(rows, _RUNNING, self.experiment_id):
                interrupt_trial(part, experiment, trial, PAUSED)
            move_experiment(rows, experiment, "paused")
        return experiment.state == "paused"

    @writes
    def end(
        self,
        rows: RowSession,
        experiment: ExperimentRow,
        state: states.ExperimentEnd,
        error: str | None = None,
    ) -> Ended:
        # A person who was told that it is cancelled does not find it completed.
        was_cancelled = experiment.state == "cancelling" or experiment.closed
        recorded = "cancelled" if state == "completed" and was_cancelled else state
        words = CLOSED if experiment.closed and recorded == "cancelled" else None
        end_experiment(rows, experiment, recorded, error or words)
        ended = find_end(experiment)
        assert ended is not None
        return ended


def find_end(experiment: ExperimentRow) -> Ended | None:
    """Return how an experiment has ended; None: it has not."""
    if experiment.state not in states.ENDED:
        return None
    return cast(states.ExperimentEnd, experiment.state), experiment.error

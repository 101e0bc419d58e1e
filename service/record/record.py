"""What the service writes to the record: new experiments, and who drives what.

Runs in the service's process; drivers write through `RecordLedger`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from sqlalchemy import Row, Text, cast, func, or_, select
from sqlalchemy.orm import Session

from eigensweep.common import traces
from eigensweep.protocol.messages import Notice
from eigensweep.protocol.states import DRIVEN, ENDED, OPEN_TRIALS
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.record.changes.control import lock
from eigensweep.service.record.changes.posting import check_quotas, has_spec, make_row
from eigensweep.service.record.changes.reopening import Reopening
from eigensweep.service.record.changes.retention import Retention
from eigensweep.service.record.errors import IdempotencyKeyReusedError, NotLeadingError
from eigensweep.service.record.journal import emit, end_experiment, move_experiment, record_notices
from eigensweep.service.record.journal.usage import leave_out
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.group_commit import GroupCommit
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import (
    OPERATOR,
    AttemptRow,
    ExperimentRow,
    ReportRow,
    TrialCount,
    TrialRow,
    Webhook,
)
from eigensweep.service.record.views.queries import count_states
from eigensweep.service.record.views.queue_order import list_newcomers, list_queue

MOST_LOOKED_AT = 100
"""Trials at which is looked, at most, to see whether an experiment comes on."""


class Record(Reopening, Retention):
    """The record of experiments at a database URL: the queue and the only memory."""

    def __init__(self, url: str, webhooks: Sequence[str] = ()) -> None:
        """`webhooks` are the addresses that are told how every experiment ends."""
        super().__init__(url)
        self.webhooks = tuple(webhooks)
        self.posts = GroupCommit(url)

    def add(
        self,
        spec: ExperimentSpec,
        idempotency_key: str | None = None,
        owner: str = OPERATOR,
        notify: Sequence[str] = (),
        beside: Callable[[RowSession, str], None] | None = None,
    ) -> tuple[ExperimentRow, bool]:
        """Queue a new experiment, whose spec was checked; return its row, and whether it is new.

        `notify` are addresses that are told how it ends, beside those of every experiment. What
        `beside` writes, which gets its id, is committed together with it.

        If an earlier experiment was posted with the same idempotency key, that one is returned.
        `scope_key` makes the key of one user.

        Raises:
            IdempotencyKeyReusedError: if the earlier one had a different body.
            QuotaExceededError: if the owner may not have it, or not one more.
        """
        experiment = make_row(spec, idempotency_key, owner)
        experiment.trace = traces.carry()
        return self.posts.write(
            partial(self._add, spec, experiment, (*self.webhooks, *notify), beside)
        )

    def _add(
        self,
        spec: ExperimentSpec,
        experiment: ExperimentRow,
        webhooks: Sequence[str],
        beside: Callable[[RowSession, str], None] | None,
        rows: RowSession,
    ) -> tuple[ExperimentRow, bool]:
        earlier = self._find_same_key(rows, spec, experiment)
        found = experiment if earlier is None else earlier
        if earlier is None:
            check_quotas(rows, [spec], experiment.owner)
            rows.add(experiment)
            for url in dict.fromkeys(webhooks):
                rows.add(Webhook(experiment_id=experiment.id, url=url))
            emit(rows, experiment, "experiment.queued", name=experiment.name)
        if beside is not None:
            beside(rows, found.id)
        return found, earlier is None

    def _find_same_key(
        self, rows: RowSession, spec: ExperimentSpec, posted: ExperimentRow
    ) -> ExperimentRow | None:
        if posted.idempotency_key is None:
            return None
        same = select(ExperimentRow.id).where(
            ExperimentRow.idempotency_key == posted.idempotency_key
        )
        if (id := rows.execute(same).scalar()) is None:
            return None
        if (earlier := rows.get(ExperimentRow, id)) is None:
            return None  # it was removed at this moment
        if earlier.fingerprint != posted.fingerprint and not has_spec(earlier, spec):
            raise IdempotencyKeyReusedError(
                f"this key was used for experiment {id}, which was posted with a different body"
            )
        return earlier

    @database.reading
    def find_by_key(self, session: Session, idempotency_key: str) -> ExperimentRow | None:
        """Return the experiment that was posted with this key, None if there is none."""
        same = ExperimentRow.idempotency_key == idempotency_key
        return session.scalars(select(ExperimentRow).where(same)).first()

    def check_quotas(self, specs: Sequence[ExperimentSpec], owner: str) -> None:
        """Refuse experiments that their owner may not have, all of them together.

        Raises:
            QuotaExceededError: says which quota does not allow them.
        """
        database.look(self.url, lambda found: check_quotas(RowSession(found), specs, owner))

    @database.reading
    def list_unfinished(self, session: Session) -> Sequence[Row[str, bool, bool, bool]]:
        """Return the experiments that have or need a driver and are not queued, oldest first.

        Each is an `id`; `is_over`: it has ended, and its driver only has to bring MLflow up to
        date; `is_told`: its notices say why it is not delivered; and `is_asked`: it is to be
        paused or cancelled.
        """
        is_over = ExperimentRow.state.in_(ENDED).label("is_over")
        told = cast(ExperimentRow.notices, Text).contains('"delivery"')
        is_told = func.coalesce(told, False).label("is_told")
        is_asked = ExperimentRow.state.in_(("pausing", "cancelling")).label("is_asked")
        query = (
            select(ExperimentRow.id, is_over, is_told, is_asked)
            .where(or_(ExperimentRow.state.in_(DRIVEN), is_over & ExperimentRow.tracked.is_(False)))
            .order_by(ExperimentRow.created_at, ExperimentRow.id)
        )
        return session.execute(query).all()

    def list_queued(self, limit: int) -> list[str]:
        """Return the ids at the head of the queue, the next one first."""
        return database.read(self.url, lambda session: list_queue(session, limit))

    def list_newcomers(self, limit: int) -> list[str]:
        """Return the next experiments of the users none of whose experiments runs."""
        return database.read(self.url, lambda session: list_newcomers(session, limit))

    @database.reading
    def has_trained(self, session: Session) -> bool:
        """Return whether a trial has completed, of experiments that are not being deleted."""
        some = TrialCount.state == "completed", TrialCount.trials > 0
        query = select(TrialCount.trials).join(ExperimentRow).where(*some)
        query = query.where(ExperimentRow.state != "deleting").limit(1)
        return session.scalars(query).first() is not None

    @database.transaction
    def claim(
        self, rows: RowSession, id: str, *, outlived: bool = False, gone_at: float | None = None
    ) -> ExperimentRow | None:
        """Return an experiment that this service may drive until the next claim.

        None if it needs no driver. From now on writes of earlier drivers are refused. A queued
        experiment becomes `starting`. For one whose driver has not `outlived` an earlier service,
        the time in which no service ran does not count; nor does that since `gone_at`, if its last
        driver is known to have ended then.

        Raises:
            NotLeadingError: if another service leads; so do `count_death` and `give_up`.
        """
        self.fence(rows)
        experiment = lock(rows, id)
        is_left = experiment.state in ENDED and not experiment.tracked
        if experiment.state not in DRIVEN | {"queued"} and not is_left:
            return None  # paused, delivered, or being deleted
        if experiment.state in DRIVEN:
            if gone_at is not None:
                leave_out(rows, experiment, gone_at, "its driver ended")
            elif self.leadership is not None and not outlived:
                since, term_at = self.leadership.absence
                if (experiment.claimed_at or 0.0) < term_at:  # the first claim of the term
                    leave_out(rows, experiment, since, "its driver ended with the service")
        now = time.time()
        experiment.generation += 1
        experiment.wants = None
        experiment.claimed_at = now
        experiment.claimed_steps = sum(
            count.step for state, count in count_states(rows, [id])[id].items() if state != "reused"
        )
        if experiment.state == "waiting_for_room":
            experiment.left_at = experiment.left_at or now  # older versions counted the wait
        if experiment.state == "queued":
            move_experiment(rows, experiment, "starting")
            if experiment.started_at is None:
                experiment.started_at = now
        return experiment

    def list_begun(self, id: str) -> list[tuple[int, range]]:
        """Return number and seeds of trials that have begun and not ended, the newest first.

        These are at most `MOST_LOOKED_AT`.
        """
        wanted = (
            select(TrialRow.number, TrialRow.seed, TrialRow.replicates)
            .where(
                TrialRow.experiment_id == id, TrialRow.state.in_(OPEN_TRIALS), TrialRow.attempt > 0
            )
            .order_by(TrialRow.number.desc())
            .limit(MOST_LOOKED_AT)
        )
        found = database.read(self.url, lambda session: session.execute(wanted).all())
        return [
            (number, range(seed, seed + replicates))
            for number, seed, replicates in found
            if seed is not None and replicates is not None
        ]

    @database.transaction
    def count_death(self, rows: RowSession, id: str, trained: int = 0) -> int:
        """Count the death of a driver; return how many died in a row without progress.

        Progress is a rung report or the end of a trial, also of one that was opened again. So is a
        change of `trained`, the steps that unfinished trials have committed, which only the store
        knows.
        """
        self.fence(rows)
        experiment = lock(rows, id)
        reports = select(func.count()).where(ReportRow.experiment_id == id)
        taken = ("reused", "invalid")
        untrained = select(func.count()).where(
            TrialRow.experiment_id == id, TrialRow.state.in_(taken)
        )
        ended = select(func.count()).where(
            AttemptRow.experiment_id == id,
            AttemptRow.ended_at.is_not(None),
            AttemptRow.reason.is_(None),
        )
        counts = (rows.execute(count).scalar_one() for count in (reports, untrained, ended))
        mark = trained + sum(counts)
        experiment.deaths = 1 if mark != experiment.progress_mark else experiment.deaths + 1
        experiment.progress_mark = mark
        experiment.wants = None  # the next driver may be long in coming
        return experiment.deaths

    @database.transaction
    def hold_delivery(self, rows: RowSession, id: str, why: str) -> None:
        """Say on an experiment that is over why MLflow does not hold it yet; shut its driver out.

        A driver that still delivers it ends within seconds, and what it delivered counts. Nothing
        happens to an experiment that is delivered, taken up again or removed by now.

        Raises:
            NotLeadingError: if another service leads by now.
        """
        self.fence(rows)
        experiment = rows.get(ExperimentRow, id, lock=True)
        if experiment is None or experiment.state not in ENDED or experiment.tracked:
            return
        experiment.generation += 1
        record_notices(rows, experiment, [Notice("delivery", f"not delivered yet: {why}")])

    @database.transaction
    def tell_death(self, rows: RowSession, id: str, why: str) -> None:
        """Say on an experiment that its driver died; the next driver says what waits then."""
        self.fence(rows)
        experiment = lock(rows, id)
        if experiment.state in DRIVEN:
            experiment.wants = None
            record_notices(
                rows, experiment, [Notice("driver", f"its driver died and is started again: {why}")]
            )

    @database.transaction
    def give_up(self, rows: RowSession, id: str, error: str) -> None:
        """End an experiment as failed; writes of its drivers are refused from now on."""
        self.fence(rows)
        experiment = lock(rows, id)
        experiment.generation += 1
        end_experiment(rows, experiment, "failed", error)

    @property
    def waits(self) -> str | None:
        """Who leads, in words, while this service only answers; None: it is this one."""
        if self.leadership is None or self.leadership.term is not None:
            return None
        return self.leadership.words

    def require_to_lead(self) -> None:
        """Refuse what a service keeps for itself, and works on only while it leads.

        Raises:
            NotLeadingError: if another service leads.
        """
        if words := self.waits:
            raise NotLeadingError(
                f"analyses and reproductions lie with the service that leads, so ask that: {words}"
            )

"""The jobs of the service, in one table: its work beside experiments.

Whoever needs a job writes it, at best in the transaction of the change that needs it. The service
that leads works on what is due. A job may be done twice: where a service dies half-way, the next
one does the job again. What became of a job is written only by the service that leads: one that
lost the lead meanwhile is refused. Runs in the service's process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from math import inf
from typing import Any, ClassVar, Final, Self, get_args

from pydantic import TypeAdapter
from sqlalchemy import or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.protocol.messages import Notice
from eigensweep.protocol.states import ENDED
from eigensweep.service.record.journal import record_notices
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession, to_storable
from eigensweep.service.record.sql.tables import ExperimentRow, JobKind, JobRow

COLUMNS: Final = ("owner", "state", "created_at", "started_at", "finished_at", "error")
PATIENCE: Final = 600.0
"""Seconds of tries to write the end of a job while the database is away."""


@dataclass(frozen=True, kw_only=True)
class AskedJob:
    """A requested job, with the fields of its kind. Times are seconds since 1970."""

    kind: ClassVar[JobKind]
    open: ClassVar[Collection[str]]
    """The states in which a job is due."""
    outcomes: ClassVar[Collection[str]]
    """The names of its outcomes."""
    id: str
    owner: str | None = None
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None

    @classmethod
    def of(cls, job: JobRow) -> Self:
        """Return the record of a job's row."""
        columns = {name: getattr(job, name) for name in COLUMNS}
        content = {"id": job.key, **columns, **job.request, **(job.outcome or {})}
        kind: Any = cls
        return _read(kind).validate_python(content)

    @classmethod
    def find(cls, jobs: Jobs, id: str) -> Self | None:
        """Return the record of one job; None: there is none of this id."""
        job = jobs.find(cls.kind, id)
        return None if job is None else cls.of(job)

    def to_job(self) -> JobRow:
        """Return it as a row of the table of jobs."""
        content = asdict(self)
        columns = {name: content.pop(name) for name in COLUMNS}
        outcome = {name: content.pop(name) for name in self.outcomes}
        due_at = self.created_at if columns["state"] in self.open else None
        key = content.pop("id")
        return JobRow(
            kind=self.kind, key=key, due_at=due_at, request=content, outcome=outcome, **columns
        )


@cache
def _read(kind: type[AskedJob]) -> TypeAdapter[Any]:
    """Return what reads the stored form of one kind."""
    return TypeAdapter(kind)


class Jobs(database.AtDatabase):
    """The jobs of the record at a database URL.

    What writes raises NotLeadingError if another service leads.
    """

    def __init__(self, url: str, fence: Callable[[RowSession], None] = lambda rows: None) -> None:
        """`fence` refuses a transaction of a service that leads no more: see `Record.fence`."""
        super().__init__(url)
        self._fence = fence
        self._woken = {kind: threading.Event() for kind in get_args(JobKind)}

    def wake(self, kind: JobKind) -> None:
        """Have this service look at the jobs of a kind at once, if it works on them."""
        self._woken[kind].set()

    def wait(self, kind: JobKind, seconds: float) -> None:
        """Wait until the jobs of a kind should be looked at, or for so many seconds."""
        self._woken[kind].wait(seconds)
        self._woken[kind].clear()

    def find(self, kind: JobKind, key: str) -> JobRow | None:
        """Return one job."""
        return database.read(self.url, lambda session: session.get(JobRow, (kind, key)))

    def list(self, kind: JobKind, states: Sequence[str] = ()) -> Sequence[JobRow]:
        """Return the jobs of a kind in one of the states (default: all), the newest first."""
        query = select(JobRow).where(JobRow.kind == kind)
        if states:
            query = query.where(JobRow.state.in_(states))
        query = query.order_by(JobRow.created_at.desc(), JobRow.key.desc())
        return database.read(self.url, lambda session: list(session.scalars(query)))

    def list_parts(self, kind: JobKind, parts: Sequence[str]) -> Sequence[JobRow]:
        """Return the jobs of a kind, the newest first, with these parts of their requests alone.

        The others, which may be large, are not read.
        """
        columns = [each for each in JobRow.__table__.columns if each.name != "request"]
        read = [JobRow.request[each] for each in parts]
        query = select(*columns, *read).where(JobRow.kind == kind)
        query = query.order_by(JobRow.created_at.desc(), JobRow.key.desc())
        found = database.look(self.url, lambda connection: connection.execute(query).all())
        names = [each.name for each in columns]
        return [
            JobRow(
                **dict(zip(names, row, strict=False)),
                request=dict(zip(parts, row[len(names) :], strict=True)),
            )
            for row in found
        ]

    def list_due(self, kind: JobKind, now: float, longest: float = inf) -> Sequence[JobRow]:
        """Return the jobs of a kind that are due, the longest due first.

        One that was not tried yet is due at once. `longest` is the longest pause between two tries:
        one that is due later was put off before the clock was set back.
        """
        is_due = or_(JobRow.due_at <= now, JobRow.due_at > now + longest, JobRow.tries == 0)
        query = select(JobRow).where(JobRow.kind == kind, JobRow.due_at.is_not(None), is_due)
        query = query.order_by(JobRow.due_at, JobRow.key)
        return database.read(self.url, lambda session: list(session.scalars(query)))

    def is_due(self, job: JobRow) -> bool:
        """Tell whether a job is still to be done; it counts as such while the database is away."""
        query = select(JobRow.due_at).where(JobRow.kind == job.kind, JobRow.key == job.key)
        with suppress(SQLAlchemyError):
            return database.read(self.url, lambda session: session.scalar(query)) is not None
        return True

    @database.transaction
    def requeue(self, rows: RowSession, kind: JobKind) -> None:
        """Queue again what a service that is gone has begun."""
        self._fence(rows)
        begun = update(JobRow).where(JobRow.kind == kind, JobRow.state == "running")
        rows.execute(begun.values(state="queued", started_at=None))

    def put(
        self,
        job: JobRow,
        unless: Callable[[JobRow], bool] = lambda now: False,
        patience: float = 0.0,
    ) -> JobRow:
        """Write a job, replacing the one with its key; return the stored one.

        A job of which `unless` is true stays as it is.
        """
        written = database.write(self.url, partial(self._put, job, unless), patience)
        self.wake(job.kind)
        return written

    def _put(self, job: JobRow, unless: Callable[[JobRow], bool], rows: RowSession) -> JobRow:
        self._fence(rows)
        job.error = to_storable(job.error)
        now = rows.get(JobRow, (job.kind, job.key), lock=True)
        if now is None:
            rows.add(job)
            return job
        if not unless(now):
            now.tries = 0 if now.due_at is None else now.tries  # one that was over begins anew
            vars(now).update({name: value for name, value in vars(job).items() if name[0] != "_"})
        return now

    @database.transaction
    def put_off(self, rows: RowSession, job: JobRow, error: str, due_at: float | None) -> None:
        """Record that a try was in vain; `due_at`: when to try again, None to give it up.

        An experiment that is not deleted or pruned yet says why in its notices.
        """
        self._fence(rows)
        experiment = None
        if job.kind in ("deletion", "pruning"):  # in the order in which others lock them
            experiment = rows.get(ExperimentRow, job.key, lock=True)
        now = rows.get(JobRow, (job.kind, job.key), lock=True)
        if now is not None and now.due_at is not None:  # else it was cancelled meanwhile
            now.due_at, now.error, now.tries = due_at, to_storable(error), now.tries + 1
            if due_at is None:
                now.state, now.finished_at = "failed", time.time()
            elif job.kind == "analysis":
                now.state = "queued"
            if experiment is not None and job.kind in ("deletion", "pruning"):
                is_deletion = job.kind == "deletion"
                what = "deleted" if is_deletion else "pruned"
                words = f"not {what} yet: {error.strip().rpartition(chr(10))[2]}"
                if is_deletion or experiment.state in ENDED:  # else others write its notices
                    record_notices(rows, experiment, [Notice(job.kind, words)])

    def finish(self, job: JobRow) -> None:
        """Record that a job is done."""
        database.write(self.url, partial(self._finish, job), PATIENCE)

    def _finish(self, job: JobRow, rows: RowSession) -> None:
        self._fence(rows)
        if (now := rows.get(JobRow, (job.kind, job.key), lock=True)) is not None:  # it may be gone
            now.state, now.due_at, now.error = "finished", None, None
            now.tries, now.finished_at = now.tries + 1, time.time()

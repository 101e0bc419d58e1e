"""Which service leads: of several with one database, one works on the queue, the others wait.

The lead is a lock that ends with its holder, however the holder ends: in PostgreSQL an advisory
lock of an open connection, with SQLite the kernel's lock of a file beside the database. A row has
the leader and its term. Each new leader raises the term, so a service that finds another term there
no longer leads, whatever it believes. Runs in the service's process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from sqlalchemy import (
    ColumnElement,
    Connection,
    NullPool,
    create_engine,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from eigensweep.service.record.errors import NotLeadingError
from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import Leader, LeaderJson

logger = logging.getLogger(__name__)

THE_ROW: Final = 1
"""The table has one row."""
LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the lock, by its holder and by the waiting services."""
HEARTBEAT_SECONDS: Final = 5.0
SILENT_SECONDS: Final = 60.0
"""Seconds without a heartbeat after which a leader counts as silent; it may hang."""

SET: Final = text("SELECT set_config(:name, :value, false)")
TRY_LOCK: Final = text(
    # The schema is part of the name: two records may lie in two schemas of a database.
    "SELECT pg_try_advisory_lock(1164535655, CAST(CAST(CAST("
    "current_schema() AS regnamespace) AS oid) AS integer))"
)


class AdvisoryLock:
    """A lock of PostgreSQL, on an open connection of its own."""

    def __init__(self, url: str) -> None:
        self._engine = create_engine(
            database.name_driver(url),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=database.CONNECT,
        )
        self._connection: Connection | None = None
        self._has_it = False

    def hold(self) -> bool:
        """Return whether this process has the lock; take it if nobody has it.

        Raises:
            SQLAlchemyError: if the database is away.
        """
        try:
            if self._connection is None:
                self._connection = self._engine.connect()
                for name, value in database.KEEPALIVES.items():
                    self._connection.execute(SET, {"name": f"tcp_{name}", "value": str(value)})
            if self._has_it:
                self._connection.execute(text("SELECT 1"))
            else:
                self._has_it = bool(self._connection.scalar(TRY_LOCK))
        except DBAPIError:
            self.release()
            raise
        return self._has_it

    def release(self) -> None:
        connection, self._connection, self._has_it = self._connection, None, False
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()


class FileOfLock:
    """The kernel's lock of a file beside a SQLite database."""

    def __init__(self, url: str) -> None:
        path = (database.file_of(url) or Path()).resolve()
        self._lock = FileLock(
            path.with_name(f"{path.name}.leader"),
            mode=0o600,
            thread_local=False,
            fallback_to_soft=False,
        )

    def hold(self) -> bool:
        if not self._lock.is_locked:
            with suppress(Timeout):
                self._lock.acquire(blocking=False)
        return self._lock.is_locked

    def release(self) -> None:
        self._lock.release(force=True)


@dataclass(frozen=True)
class Lead:
    """The leader, as one service knows it."""

    here: bool
    """Whether it is this service."""
    about: LeaderJson
    since: float
    """Time, in seconds since 1970."""
    heartbeat_seconds: float
    """Seconds since its last heartbeat."""

    @property
    def is_silent(self) -> bool:
        """Whether its last heartbeat is long ago."""
        return self.heartbeat_seconds > SILENT_SECONDS

    @property
    def words(self) -> str:
        """Who leads, in words."""
        about, since = self.about, datetime.fromtimestamp(self.since, UTC)
        who = f"{about['host']} pid {about['pid']} at {about['address']}"
        return (
            f"this service {f'({who})' if self.here else f'waits: {who}'} leads since "
            f"{since:%Y-%m-%d %H:%M:%S} UTC, heartbeat {self.heartbeat_seconds:.0f} s ago"
        )


class Leadership(database.AtDatabase):
    """Has the lead of a database, or waits for it.

    Call `hold` until it is true, then `begin`; from then on a thread keeps the lead. The lead is
    over when `term` is None. An outage of the database does not end a lead: only the next leader's
    term does.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(url)
        self.term: int | None = None
        """The term in which this service leads; None: it does not."""
        self.absence = 0.0, 0.0
        """When nobody looked after drivers before this term: since when, and when this term began,
        in seconds since 1970."""
        self._began = 0.0
        """When this term began."""
        self.serves = False
        """Whether this service looks after drivers; the next heartbeat says so."""
        self.problem: str | None = None
        """Why it may have lost the lead; None: it has not, or it waits."""
        self._clock = clock
        is_sqlite = make_url(url).get_backend_name() == "sqlite"
        self._lock = FileOfLock(url) if is_sqlite else AdvisoryLock(url)
        self._row: tuple[int, LeaderJson, float, float] | None = None
        """Term, who leads, since when, and the heartbeat that was last seen."""
        self._heard_at = 0.0
        """By the clock, when that heartbeat was seen first."""
        self._stopping = threading.Event()

    def hold(self) -> bool:
        """Return whether this service has the lock; take it if no other one has it.

        Raises:
            SQLAlchemyError, OSError: if the database is away, or its lock cannot be made.
        """
        return self._lock.hold()

    def begin(self, about: LeaderJson) -> None:
        """Begin a term, and keep it in a thread; call it when `hold` was true.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        now = time.time()
        term, since = self._raise_term(about, now)
        self.absence, self._about, self._began = (since, now), about, now
        self._row, self._heard_at = (term, about, now, now), self._clock()
        self.term = term
        threading.Thread(target=self._keep_on, name="leadership", daemon=True).start()

    @database.transaction
    def _raise_term(self, rows: RowSession, about: LeaderJson, now: float) -> tuple[int, float]:
        """Return the new term, and since when nobody has looked after drivers."""
        row = rows.get(Leader, THE_ROW, lock=True)
        if row is None:
            row = Leader(id=THE_ROW, term=0, about=about, heartbeat_at=now)
            rows.add(row)
        since = row.about.get("idle_since", row.heartbeat_at)
        row.term, row.about, row.since = row.term + 1, {**about, "idle_since": since}, now
        row.heartbeat_at = now
        return row.term, since

    def keep(self) -> None:
        """Look once whether this service still leads, and let the others know."""
        term = self.term
        if term is None:
            return
        try:
            holds = self._lock.hold()
            is_due = self._clock() >= self._heard_at + HEARTBEAT_SECONDS
            if (is_due or not holds or self.problem is not None) and not self._beat(term):
                self.term = None
                return
            problem = None if holds else "another session has the lock of the database"
        except (SQLAlchemyError, OSError) as error:
            problem = f"{type(error).__name__}: {error}".split("\n", 1)[0]
        if problem is not None and self.problem is None:
            logger.warning("it is not sure whether this service still leads: %s", problem)
        elif problem is None and self.problem is not None:
            logger.info("this service still leads term=%d", term)
        self.problem = problem

    def look(self) -> Lead | None:
        """Return who leads, read from the database; None: nobody has led yet.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        columns = Leader.term, Leader.about, Leader.since, Leader.heartbeat_at
        found = database.look(
            self.url, lambda connection: connection.execute(select(*columns)).first()
        )
        if found is not None and tuple(found) != self._row:
            first = self._row is None
            self._row = found.term, found.about, found.since, found.heartbeat_at
            # Clocks of machines differ, so after the first look only this one's counts.
            ago = max(0.0, time.time() - found.heartbeat_at) if first else 0.0
            self._heard_at = self._clock() - ago
        return self.lead

    @property
    def lead(self) -> Lead | None:
        """Who leads, as it was last seen; None: not known."""
        if self._row is None:
            return None
        _, about, since, _ = self._row
        ago = self._clock() - self._heard_at
        return Lead(self.term is not None, about, since, ago)

    @property
    def words(self) -> str:
        """Who leads, in words."""
        if (lead := self.lead) is None:
            return "this service waits: another one has the lock of the database"
        return f"{lead.words}; {self.problem}" if self.problem else lead.words

    def explain_loss(self) -> str:
        """Return who leads now instead of this service."""
        with suppress(SQLAlchemyError):
            self.look()
        return self.words

    def require(self, rows: RowSession) -> None:
        """Guard a block that only the leader may run; it ends before the next leader begins.

        Raises:
            NotLeadingError: if this service does not lead.
        """
        mine = select(Leader.id).where(*self._of_term(self.term)).with_for_update(read=True)
        if self.term is None or rows.execute(mine).first() is None:
            self.term = None
            raise NotLeadingError(f"only the leader does this, and {self.words}")

    def stop(self) -> None:
        """Give up the lead."""
        self._stopping.set()
        self.term = None
        self._lock.release()

    def _keep_on(self) -> None:
        pause = LOOK_SECONDS
        while self.term is not None and not self._stopping.wait(pause):
            was_sure = self.problem is None
            self.keep()
            # A connection that was cut is made anew at once, before others take the lead.
            pause = 0.0 if was_sure and self.problem is not None else LOOK_SECONDS

    def _of_term(self, term: int | None) -> tuple[ColumnElement[bool], ...]:
        """Return the condition for the row of this service's term.

        A standby that takes over may lack the last term, and give its number once more.
        """
        return Leader.id == THE_ROW, Leader.term == term, Leader.since == self._began

    def _beat(self, term: int) -> bool:
        """Write down that this service lives; return whether it still leads."""
        mine = update(Leader).where(*self._of_term(term))
        beat = mine.values(heartbeat_at=time.time()).returning(Leader.term)
        if self.serves:
            beat = beat.values(about=self._about)
        found = database.write_relaxed(self.url, lambda rows: rows.execute(beat).scalar())
        leads = found is not None
        if leads:
            self._heard_at = self._clock()
        return leads

"""Connections to the record's database, and transactions that wait while it is locked or away.

Runs in the service's process and in every driver's.
"""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import lru_cache, wraps
from pathlib import Path
from typing import Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar
from urllib.parse import urlsplit

from sqlalchemy import Connection, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_before_delay,
    wait_exponential,
)

from eigensweep.protocol.ledger import OtherVersionError
from eigensweep.service.record.sql import rows
from eigensweep.service.record.sql.rows import RowSession

logger = logging.getLogger(__name__)

BUSY_SECONDS = 20
"""How long SQLite itself waits for another writer."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0

MANY: Final = (10, 30)
FEW: Final = (2, 3)
"""Connections that a process keeps to PostgreSQL, and how many more it opens for a moment: the
service, and each driver. `postgresql.maxConnections` of the chart counts with them."""

KEEPALIVES: Final = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3}
"""TCP keepalive: with these, each end of the connection notices within some ten seconds that the
other machine is gone. Idle seconds, seconds between probes, and lost probes."""
CONNECT: Final = {"connect_timeout": 5, "tcp_user_timeout": 10_000, **KEEPALIVES}
"""How a connection to PostgreSQL notices that nobody is at its other end. Without these, a question
on one that a router has forgotten would wait a quarter of an hour."""

READ_ONLY: Final = "25006"
"""SQLSTATE of a write to a PostgreSQL that only reads, such as a standby, or one that is full."""
MISSING_IN_POSTGRESQL: Final = {"3F000", "42P01", "42703"}
"""SQLSTATE of a schema, a table or a column that does not exist."""
MISSING_IN_SQLITE: Final = re.compile("no such (table|column)|has no column named")
DAMAGED_IN_POSTGRESQL: Final = {"XX001", "XX002"}
"""SQLSTATE of damaged data and of a damaged index."""
DAMAGED_IN_SQLITE: Final = ("SQLITE_CORRUPT", "SQLITE_NOTADB")

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


class HasUrl(Protocol):
    """What reads and writes the database at a URL.

    While it is away, it is tried again for `patience` seconds.
    """

    @property
    def url(self) -> str: ...
    @property
    def patience(self) -> float: ...


H = TypeVar("H", bound=HasUrl)


class AtDatabase:
    """The same, where nothing is tried again."""

    patience = 0.0

    def __init__(self, url: str) -> None:
        self.url = url


Mode = Literal["reads", "writes", "writes_relaxed"]
"""What a transaction does. A relaxed write is on SQLite's disk as soon as the next full one is."""

_few: Final[set[str]] = set()
_damage: Final[dict[str, str]] = {}
"""What was seen of damage, by the URL of the database. It stays until the process ends."""

_BEGIN, _BEGIN_IMMEDIATE = text("BEGIN"), text("BEGIN IMMEDIATE")
_SYNC, _SYNC_LATER = text("PRAGMA synchronous=FULL"), text("PRAGMA synchronous=NORMAL")


class WrongSchemaError(OtherVersionError, SQLAlchemyError):
    """The database lacks a table or a column of this version; waiting does not help."""

    def __init__(self, url: str, error: DBAPIError) -> None:
        place = show_place(url)
        what = str(error.orig).split("\n", 1)[0]
        super().__init__(
            f"the record at {place} has not the schema of this version of Eigensweep ({what}): "
            "start `eigensweep serve` with this database, which brings its schema up to date, or "
            "set EIGENSWEEP_HOME or EIGENSWEEP_DATABASE_URL to another place"
        )


class ReadOnlyError(SQLAlchemyError):
    """The database reads and does not write."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"the record at {show_place(url)} is read-only, as a standby is: all writes wait"
        )


def show_place(url: str) -> str:
    """Return the URL of a database as a person may read it, without its passwords.

    >>> show_place("postgresql://me:secret@db/record?sslmode=require&password=secret")
    'postgresql://me:***@db/record?sslmode=require'
    """
    parsed = make_url(url)
    secret = [name for name in parsed.query if "password" in name]
    return parsed.difference_update_query(secret).render_as_string(hide_password=True)


def name_driver(url: str) -> str:
    """Return a database URL that names the installed driver: psycopg 3 for PostgreSQL.

    >>> name_driver("postgresql://me@db/record")
    'postgresql+psycopg://me@db/record'
    """
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


def file_of(url: str) -> Path | None:
    """Return the file of a database of SQLite; None of any other, or of one in memory.

    >>> file_of("sqlite:///file:/home/r.db?uri=true"), file_of("sqlite:////home/r.db")
    (PosixPath('/home/r.db'), PosixPath('/home/r.db'))
    """
    found = make_url(url)
    if found.get_backend_name() != "sqlite" or not found.database:
        return None
    path = urlsplit(found.database).path if found.database.startswith("file:") else found.database
    return None if path == ":memory:" else Path(path)


@lru_cache(maxsize=64)
def engine(url: str) -> Engine:
    """Return this process's engine for a database, made at the first call."""
    parsed = make_url(name_driver(url))
    if parsed.get_backend_name() != "sqlite":
        size, more = FEW if url in _few else MANY
        return create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=size,
            max_overflow=more,
            pool_timeout=10,
            connect_args=CONNECT,
        )
    made = create_engine(
        parsed, pool_size=10, max_overflow=30, connect_args={"timeout": BUSY_SECONDS}
    )
    event.listen(made, "connect", _set_up_sqlite)
    event.listen(made, "begin", _begin_sqlite)
    return made


def hold_few_connections(url: str) -> None:
    """Let this process have few connections to a PostgreSQL at a time; whoever needs one waits."""
    _few.add(url)


@lru_cache(maxsize=64)
def writers_turn(url: str) -> AbstractContextManager[object]:
    """Return the lock of writers: with SQLite one thread of a process writes at a time.

    SQLite has no queue of writers. One that waits asks again every 100 ms, and can find the
    database locked by others each time until it gives up.
    """
    return threading.Lock() if takes_turns(url) else nullcontext()


@lru_cache(maxsize=64)
def takes_turns(url: str) -> bool:
    """Return whether one thread of a process writes at a time: with SQLite, and no other."""
    return make_url(url).get_backend_name() == "sqlite"


def _set_up_sqlite(connection: sqlite3.Connection, _: object) -> None:
    connection.isolation_level = None  # pysqlite must not begin transactions behind our back
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA foreign_keys=ON")
    # SQLite's own knows ASCII alone, and names are searched for in any case.
    connection.create_function("lower", 1, lambda text: text and text.lower(), deterministic=True)


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write takes its lock at once: one that reads first and then finds
    # another writer before it would fail without waiting.
    mode: Mode = connection.get_execution_options().get("mode", "reads")
    if mode == "reads":
        rows.execute(connection, _BEGIN)
        return
    if connection.info.get("mode") != mode:
        rows.execute(connection, _SYNC if mode == "writes" else _SYNC_LATER)
        connection.info["mode"] = mode
    rows.execute(connection, _BEGIN_IMMEDIATE)


def is_away(error: BaseException) -> bool:
    """Return whether the database was locked, full, read-only or out of reach: it may come back."""
    if isinstance(error, PoolTimeoutError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == READ_ONLY:
        return True
    if isinstance(error, OperationalError | InterfaceError):
        # SQLite reports wrong SQL as an OperationalError, too; any other name is about the file.
        return getattr(error.orig, "sqlite_errorname", None) != "SQLITE_ERROR"
    return False


def is_full(error: BaseException) -> bool:
    """Return whether the disk of a database of SQLite has no room left."""
    return getattr(getattr(error, "orig", None), "sqlite_errorname", None) == "SQLITE_FULL"


def explain(error: BaseException) -> str:
    """Return an error's words; of what the database refuses its own, without statement and values.

    >>> explain(DBAPIError("INSERT ...", {"name": "x"}, ValueError("value out of range")))
    'value out of range'
    """
    return str(getattr(error, "orig", None) or error) or type(error).__name__


def is_damaged(error: BaseException) -> bool:
    """Return whether the database says that its files hold nonsense; waiting does not help."""
    if not isinstance(error, DBAPIError):
        return False
    if getattr(error.orig, "sqlite_errorname", "").startswith(DAMAGED_IN_SQLITE):
        return True
    return getattr(error.orig, "sqlstate", None) in DAMAGED_IN_POSTGRESQL


def find_damage(url: str) -> str | None:
    """Return what this process has seen of damage in a database, None if it has seen none."""
    return _damage.get(url)


def look_for_damage(url: str) -> None:
    """Have SQLite read the whole database; afterwards `find_damage` returns what it found.

    A large record takes a while. PostgreSQL has checksums of its own, and says what is damaged when
    it reads it.
    """
    if not takes_turns(url):
        return
    with suppress(SQLAlchemyError):  # damage is noted; what is away is told by whoever asks next
        words = look(url, lambda connection: connection.scalar(text("PRAGMA quick_check(1)")))
        if words != "ok":
            _note_damage(url, words)


def explain_damage(url: str, what: object) -> str:
    """Return the words for a person whose record is damaged."""
    place = show_place(url)
    return (
        f"the record at {place} is damaged ({what}): stop the service and restore a backup with "
        "`eigensweep restore`"
    )


def _note_damage(url: str, what: object) -> None:
    if url not in _damage:
        _damage[url] = explain_damage(url, what)
        logger.error("%s", _damage[url])


def lacks_schema(error: DBAPIError) -> bool:
    """Return whether the database lacks a table or a column that was asked for."""
    if isinstance(error.orig, sqlite3.Error):
        return MISSING_IN_SQLITE.search(str(error.orig)) is not None
    return getattr(error.orig, "sqlstate", None) in MISSING_IN_POSTGRESQL


def read(url: str, work: Callable[[Session], T], patience: float = 0.0) -> T:
    """Return `work(session)`, which only reads; tried again, and refused, as in `write`."""
    return _persist(url, work, patience, _open_session, "reads")


def look(url: str, work: Callable[[Connection], T], patience: float = 0.0) -> T:
    """Return `work(connection)`, the same as `read`, for a single statement."""
    return _persist(url, work, patience, Engine.connect, "reads")


def write(url: str, work: Callable[[RowSession], T], patience: float = 0.0) -> T:
    """Return `work(rows)`, committed as one transaction.

    While the database is away it is tried again, for `patience` seconds; once, too, where another
    writer made the same row meanwhile. So `work` may run more than once, even after a commit whose
    answer was lost.

    Raises:
        WrongSchemaError: if a table or column is missing; this is never waited for.
    """
    return _persist(url, work, patience, _open_rows, "writes")


def transaction(
    method: Callable[Concatenate[H, RowSession, P], T],
) -> Callable[Concatenate[H, P], T]:
    """Make a method that is given rows one that is a transaction of its own, as in `write`."""

    @wraps(method)
    def call(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return write(self.url, lambda it: method(self, it, *args, **kwargs), self.patience)

    return call


def reading(
    method: Callable[Concatenate[H, Session, P], T],
) -> Callable[Concatenate[H, P], T]:
    """Do the same for what only reads, with a session, as in `read`."""

    @wraps(method)
    def call(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return read(self.url, lambda it: method(self, it, *args, **kwargs), self.patience)

    return call


def write_relaxed(url: str, work: Callable[[RowSession], T], patience: float = 0.0) -> T:
    """Do the same as `write`; with SQLite, without waiting for the disk.

    If the machine loses its power at once, what was written may be lost, but never without all that
    was written after it. Nothing is lost if the process dies. So this is for what nobody relies on
    before the next transaction that writes. PostgreSQL's server may die alone, and whoever wrote to
    it lives on: there the disk is waited for.
    """
    return _persist(url, work, patience, _open_rows, "writes_relaxed")


def _persist(
    url: str,
    work: Callable[[S], T],
    patience: float,
    begin: Callable[[Engine], AbstractContextManager[S]],
    mode: Mode,
) -> T:
    try:  # nearly always this is all: making a `Retrying` would be a good part of the cost
        return _transact(url, work, begin, mode)
    except Exception as error:
        if not isinstance(error, IntegrityError) and (patience <= 0 or not is_away(error)):
            raise
    again = Retrying(
        retry=retry_if_exception(is_away),
        stop=stop_before_delay(patience),
        wait=wait_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE),
        before_sleep=_log_away,
        reraise=True,
    )
    return again(_transact, url, work, begin, mode)


def _transact(
    url: str,
    work: Callable[[S], T],
    begin: Callable[[Engine], AbstractContextManager[S]],
    mode: Mode,
) -> T:
    turn = nullcontext() if mode == "reads" else writers_turn(url)
    try:
        with turn, begin(_bound(url, mode)) as session:
            return work(session)
    except DBAPIError as error:
        if lacks_schema(error):
            raise WrongSchemaError(url, error) from error
        if is_damaged(error):
            _note_damage(url, error.orig)
        raise


@contextmanager
def _open_session(bound: Engine) -> Iterator[Session]:
    with Session(bound, expire_on_commit=False) as session, session.begin():
        yield session


@contextmanager
def _open_rows(bound: Engine) -> Iterator[RowSession]:
    with bound.begin() as connection:
        session = RowSession(connection)
        yield session
        session.flush()


@lru_cache(maxsize=128)
def _bound(url: str, mode: Mode) -> Engine:
    """Return the engine, as it begins transactions of a mode."""
    return engine(url) if mode == "reads" else engine(url).execution_options(mode=mode)


def _log_away(state: RetryCallState) -> None:
    error = None if state.outcome is None else state.outcome.exception()
    waited = state.seconds_since_start
    logger.warning("database away, trying again waited=%.1f error=%s", waited or 0.0, error)

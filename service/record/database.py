"""Connections to the record's database, and transactions that outlive a lock or an outage."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)

BUSY_SECONDS = 20
LONGEST_PAUSE = 10.0

T = TypeVar("T")


def normalised(url: str) -> str:
    """Return the URL with the driver that is installed: psycopg 3 for PostgreSQL.

    >>> normalised("postgresql://me@db/record")
    'postgresql+psycopg://me@db/record'
    """
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed.render_as_string(hide_password=False)


@lru_cache(maxsize=64)
def engine(url: str) -> Engine:
    """Return this process's engine for a database, made at the first call."""
    parsed = make_url(normalised(url))
    if parsed.get_backend_name() != "sqlite":
        return create_engine(
            parsed,
            pool_pre_ping=True,
            pool_size=10,
            max_overflow=30,
            pool_timeout=10,
            connect_args={"connect_timeout": 5},
        )
    made = create_engine(
        parsed, pool_size=10, max_overflow=30, connect_args={"timeout": BUSY_SECONDS}
    )
    event.listen(made, "connect", _set_up_sqlite)
    event.listen(made, "begin", _begin_sqlite)
    return made


def _set_up_sqlite(connection: sqlite3.Connection, _: Any) -> None:
    connection.isolation_level = None  # pysqlite must not begin transactions behind our back
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that will write takes its lock at once: one that reads first and then finds
    # another writer before it would fail without waiting.
    writes = connection.get_execution_options().get("writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def is_away(error: BaseException) -> bool:
    """Return whether the database was locked, full or out of reach, so that trying again helps."""
    if isinstance(error, PoolTimeoutError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, OperationalError | InterfaceError):
        return "no such" not in str(error.orig)
    return False


def read(url: str, work: Callable[[Session], T], patience: float = 0.0) -> T:
    """Return `work(session)`, which only reads; tried again as in `write`."""
    return _run(url, work, {}, patience)


def write(url: str, work: Callable[[Session], T], patience: float = 0.0) -> T:
    """Return `work(session)`, committed as one transaction.

    Tried again for `patience` seconds while the database is away. `work` may run more than once,
    and once more after a commit whose answer was lost.
    """
    return _run(url, work, {"writes": True}, patience)


def _run(url: str, work: Callable[[Session], T], options: dict[str, Any], patience: float) -> T:
    began = time.monotonic()
    pause = 0.1
    while True:
        try:
            bound = engine(url).execution_options(**options)
            with Session(bound, expire_on_commit=False) as session, session.begin():
                return work(session)
        except SQLAlchemyError as error:
            waited = time.monotonic() - began
            if not is_away(error) or waited + pause > patience:
                raise
            logger.warning("database away, trying again waited=%.1f error=%s", waited, error)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)

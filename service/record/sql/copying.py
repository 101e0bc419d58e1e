"""The rows of a record, from one database into another: for backups, and to move a record.

Values are converted by the columns' types, so a record of PostgreSQL fits into SQLite, and back.
Both databases have the schema of this version. SQLAlchemy alone does this: PostgreSQL's own
programs refuse a server that is newer than they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Table, func, insert, inspect, literal, select, text
from sqlalchemy import table as sa_table
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from eigensweep.service.record.sql import database
from eigensweep.service.record.sql.tables import Base, Leader, TrialCount

LEFT_OUT: Final = {TrialCount.__tablename__, Leader.__tablename__}
"""Tables that are not copied: triggers count the trials anew, and another service leads the
copy."""
ROWS_AT_ONCE: Final = 5_000
LOCK_MS: Final = 500
"""Milliseconds of waiting for the lock of a table. It is less than PostgreSQL's `deadlock_timeout`
(one second), so that a deadlock aborts nobody else's write."""
LOCK_NOT_AVAILABLE: Final = "55P03"
"""PostgreSQL's SQLSTATE."""


@contextmanager
def see_one_moment(url: str) -> Iterator[Connection]:
    """Lend a connection to PostgreSQL with a snapshot of the moment of its first statement."""
    with database.engine(url).connect() as connection:
        yield connection.execution_options(isolation_level="REPEATABLE READ")


@contextmanager
def nobody_writes(url: str, patience: float) -> Iterator[None]:
    """Block writers of experiments and trials in PostgreSQL; readers go on.

    Raises:
        DBAPIError: if others write for more than `patience` seconds without a pause.
    """
    again = Retrying(
        retry=retry_if_exception(_is_taken),
        stop=stop_after_delay(patience),
        wait=wait_random(0.05, 0.5),
        reraise=True,
    )
    with database.engine(url).connect() as connection:
        again(_lock, connection)
        yield  # the end of the connection's transaction is that of the lock


def _lock(connection: Connection) -> None:
    try:
        connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_MS}"))
        connection.execute(text("LOCK TABLE experiments, trials IN SHARE MODE"))
    except DBAPIError:
        connection.rollback()
        raise


def _is_taken(error: BaseException) -> bool:
    if not isinstance(error, DBAPIError):
        return False
    return getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE


def copy_rows(source: Connection, target: Connection) -> None:
    """Copy all rows into a record that has none."""
    for table in _list_tables():
        every = select(table).execution_options(yield_per=ROWS_AT_ONCE)
        for some in source.execute(every).mappings().partitions():
            target.execute(insert(table), [dict(row) for row in some])
        number = table.autoincrement_column
        if number is not None and target.dialect.name == "postgresql":
            sequence = func.pg_get_serial_sequence(table.name, number.name)
            last = select(func.max(number)).scalar_subquery()
            target.execute(select(func.setval(sequence, last)))


def find_table_in_use(connection: Connection) -> str | None:
    """Return the name of a table that has rows, or is none of a record; None: a record fits in.

    The schema may be of any version, or not be there.
    """
    names = set(inspect(connection).get_table_names())
    is_ours = "alembic_version" in names
    for name in sorted(names - LEFT_OUT - {"alembic_version"}):
        rows = select(literal(1)).select_from(sa_table(name)).limit(1)
        is_known = is_ours and name in Base.metadata.tables
        if not is_known or connection.execute(rows).first() is not None:
            return name
    return None


def _list_tables() -> list[Table]:
    """Return the tables to copy, each after the tables that it refers to."""
    return [table for table in Base.metadata.sorted_tables if table.name not in LEFT_OUT]

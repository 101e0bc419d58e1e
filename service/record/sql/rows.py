"""A few rows, read and written in one transaction with little work around each statement.

All that is written to the record is written so. A driver writes three times for each trial, some
rows at a time, and a post writes once. With SQLAlchemy's `Session`, which reads, most of the time
would go into the ORM, and then into what SQLAlchemy does around each statement. Here SQLAlchemy
writes each statement once; then it goes straight to the database's driver, inside SQLAlchemy's
transaction. Runs in drivers and in the service's process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.sql import ClauseElement
from sqlalchemy.types import TypeEngine

T = TypeVar("T")

Convert = Callable[[Any], Any]


def to_storable(text: str | None) -> str | None:
    r"""Return text without what a database refuses: NUL, and a half of a surrogate pair.

    >>> to_storable("caf\udce9\0")
    'caf?'
    """
    return None if text is None else text.replace("\0", "").encode(errors="replace").decode()


class RowSession:
    """The rows of one transaction; what was changed in them is written by `flush`."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._rows: dict[tuple[type, Any], SimpleNamespace | None] = {}
        self._read: dict[tuple[type, Any], dict[str, object]] = {}
        self._new: list[Any] = []

    def get(self, entity: type[T], ident: Any, *, lock: bool = False) -> T | None:
        """Return a row, read once; `lock` makes other writers of it wait, where they can."""
        key = ident if isinstance(ident, tuple) else (ident,)
        if (entity, key) not in self._rows:
            found = read_first(self._connection, _select(_table(entity), lock), _name_key(key))
            self._rows[entity, key] = None
            if found is not None:
                self._read[entity, key] = found
                self._rows[entity, key] = SimpleNamespace(**found)
        return cast("T | None", self._rows[entity, key])

    def get_one(self, entity: type[T], ident: Any, *, lock: bool = False) -> T:
        """Return a row that must be there.

        Raises:
            LookupError: if it is not.
        """
        row = self.get(entity, ident, lock=lock)
        if row is None:
            raise LookupError(f"there is no row {ident} in {_table(entity).name}")
        return row

    def get_all(
        self, entity: type[T], statement: ClauseElement, values: Mapping[str, Any]
    ) -> list[T]:
        """Return the rows of a table that a constant query for all of its columns finds."""
        names = [column.name for column in _table(entity).primary_key]
        found = read_all(self._connection, statement, values)
        for row in found:
            key = entity, tuple(row[name] for name in names)
            self._read[key], self._rows[key] = row, SimpleNamespace(**row)
        return [cast(T, self._rows[entity, tuple(row[name] for name in names)]) for row in found]

    def make_part(self) -> RowSession:
        """Return a session in the same transaction, for rows that are not kept until its end.

        Call its `flush`.
        """
        return RowSession(self._connection)

    def add(self, instance: object) -> None:
        """Insert a new row when `flush` is called; then the object has its columns' defaults."""
        self._new.append(instance)

    def execute(
        self, statement: sa.Executable, params: Any = None, /
    ) -> sa.Result[*tuple[Any, ...]]:
        """Execute a statement, which does not see what `flush` has still to write."""
        return self._connection.execute(statement, params)

    def flush(self) -> None:
        """Write what is new, in the order in which it came, and what was changed."""
        for (entity, key), before in self._read.items():
            after = vars(self._rows[entity, key])
            changed = {name: after[name] for name in before if after[name] is not before[name]}
            if changed:
                statement = _update(_table(entity), tuple(changed))
                self._write(statement, _name_key(key) | _name_new(changed))
                before.update(changed)
        new, self._new = self._new, []
        for instance in new:
            table, given = _table(type(instance)), vars(instance)
            values = _find_defaults(table) | {
                name: value for name, value in given.items() if not name.startswith("_")
            }
            given.update(values)
            self._write(_insert(table, tuple(values)), _name_new(values))

    def _write(self, statement: ClauseElement, values: Mapping[str, Any]) -> None:
        _execute(self._connection, _prepare(statement, self._connection.dialect), values)


def read_first(
    connection: sa.Connection, statement: ClauseElement, values: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the first row of a query by the names of its columns, None if there is none.

    The statement is prepared once and kept, so it should be a constant.
    """
    return next(iter(read_all(connection, statement, values)), None)


def read_all(
    connection: sa.Connection, statement: ClauseElement, values: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return all rows of a query in the same way; it should find few."""
    prepared = _prepare(statement, connection.dialect)
    cursor = _execute(connection, prepared, values)
    rows = [prepared.read(each, cursor.description) for each in cursor.fetchall()]
    cursor.close()
    return rows


class _Prepared:
    """A statement in the words of a database, and how values go in and come out."""

    def __init__(self, statement: ClauseElement, dialect: sa.Dialect) -> None:
        compiled: Any = statement.compile(dialect=dialect)
        self.text: str = compiled.string
        self._dialect = dialect
        self._order: list[str] | None = compiled.positiontup if compiled.positional else None
        self._constants: dict[str, object] = compiled.params
        found = {
            name: each.type.dialect_impl(dialect).bind_processor(dialect)
            for name, each in compiled.binds.items()
        }
        self._to_database = {name: convert for name, convert in found.items() if convert}
        self._columns: dict[str, TypeEngine[Any]] = {
            column.key: column.type for column in getattr(statement, "selected_columns", ())
        }
        self._from_database: list[tuple[str, Convert]] | None = None
        """Columns whose values are converted; known after the first row."""

    def bind(self, values: Mapping[str, Any]) -> dict[str, object] | tuple[Any, ...]:
        """Return values as the database's driver takes them."""
        bound = {**self._constants, **values}
        for name, convert in self._to_database.items():
            bound[name] = convert(bound[name])
        return bound if self._order is None else tuple(bound[name] for name in self._order)

    def read(self, found: tuple[Any, ...], description: Any) -> dict[str, Any]:
        """Return a row by the names of its columns."""
        row = dict(zip(self._columns, found, strict=True))
        if self._from_database is None:
            self._from_database = self._find_converts([each[1] for each in description])
        for name, convert in self._from_database:
            row[name] = convert(row[name])
        return row

    def _find_converts(self, codes: list[Any]) -> list[tuple[str, Convert]]:
        """Return how each column is converted; `codes` are what the driver calls their types."""
        converts = {
            name: kind.dialect_impl(self._dialect).result_processor(self._dialect, code)
            for (name, kind), code in zip(self._columns.items(), codes, strict=True)
        }
        return [(name, _remember(convert)) for name, convert in converts.items() if convert]


def _remember(convert: Convert) -> Convert:
    """Return a conversion that keeps its last value: an experiment's spec is read again and again.

    The rows of a `RowSession` are changed by new values only, so they may share one.
    """
    last: tuple[Any, Any] = None, convert(None)

    def convert_anew(value: Any) -> Any:
        nonlocal last
        known = last  # another thread may set another one meanwhile
        if value != known[0]:
            last = known = value, convert(value)
        return known[1]

    return convert_anew


@lru_cache(maxsize=256)
def _prepare(statement: ClauseElement, dialect: sa.Dialect) -> _Prepared:
    return _Prepared(statement, dialect)


def execute(connection: sa.Connection, statement: ClauseElement) -> None:
    """Execute a constant statement that answers nothing.

    Raises:
        DBAPIError: as SQLAlchemy raises it.
    """
    _execute(connection, _prepare(statement, connection.dialect), {}).close()


def _execute(connection: sa.Connection, prepared: _Prepared, values: Mapping[str, Any]) -> Any:
    """Execute a statement in the connection's transaction; return the driver's cursor.

    Raises:
        DBAPIError: as SQLAlchemy raises it.
    """
    dialect, below = connection.dialect, connection.connection
    cursor = below.cursor()
    bound = prepared.bind(values)
    try:
        cursor.execute(prepared.text, bound)
    except dialect.loaded_dbapi.Error as error:
        is_lost = dialect.is_disconnect(error, cast(Any, below), cursor)
        if is_lost:
            connection.invalidate(error)
        base: Any = dialect.loaded_dbapi.Error
        raise DBAPIError.instance(
            prepared.text, bound, error, base, connection_invalidated=is_lost, dialect=dialect
        ) from error
    return cursor


def _name_key(key: tuple[Any, ...]) -> dict[str, object]:
    return {f"key_{place}": part for place, part in enumerate(key)}


def _name_new(values: Mapping[str, Any]) -> dict[str, object]:
    return {f"new_{name}": value for name, value in values.items()}


def _table(entity: type) -> sa.Table:
    return cast(sa.Table, cast(type[DeclarativeBase], entity).__table__)


def _is_named(table: sa.Table) -> list[Any]:
    """Return the conditions that choose the row of a primary key."""
    columns = [table.c[column.name] for column in table.primary_key]
    return [column == sa.bindparam(f"key_{place}") for place, column in enumerate(columns)]


@lru_cache
def _find_defaults(table: sa.Table) -> dict[str, object]:
    """Return what columns hold where nothing is said."""
    return {
        column.key: column.default.arg
        for column in table.columns
        if isinstance(column.default, sa.ColumnDefault) and column.default.is_scalar
    }


def _bind(table: sa.Table, names: tuple[str, ...]) -> dict[str, object]:
    return {name: sa.bindparam(f"new_{name}", type_=table.c[name].type) for name in names}


@lru_cache
def _select(table: sa.Table, lock: bool) -> ClauseElement:
    chosen = sa.select(table).where(*_is_named(table))
    return chosen.with_for_update() if lock else chosen


@lru_cache
def _update(table: sa.Table, names: tuple[str, ...]) -> ClauseElement:
    return sa.update(table).where(*_is_named(table)).values(_bind(table, names))


@lru_cache
def _insert(table: sa.Table, names: tuple[str, ...]) -> ClauseElement:
    return sa.insert(table).inline().values(_bind(table, names))

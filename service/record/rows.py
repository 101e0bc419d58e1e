"""A few rows, read and written in one transaction without SQLAlchemy's ORM.

A driver writes four times for each trial, two or three rows at a time. With a `Session` most of its
time goes into the ORM. `RowSession` has the few methods of one that the shared steps in
[journal.py](journal.py) call, and executes plain statements. Runs in drivers.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, cast

from sqlalchemy import Connection, Executable, Table, bindparam, insert, select, update
from sqlalchemy.orm import DeclarativeBase

T = TypeVar("T")


class Rows(Protocol):
    """What the shared steps need of a `Session`, or of a `RowSession`."""

    def get(self, entity: type[T], ident: Any) -> T | None:
        """Return the row with a primary key, None if there is none."""

    def get_one(self, entity: type[T], ident: Any) -> T:
        """Return the row with a primary key, which must be there."""

    def add(self, instance: object) -> None:
        """Insert a new row, at the end of the transaction at the latest."""


class RowSession:
    """The rows of one transaction; what was changed in them is written by `flush`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[tuple[type, Any], SimpleNamespace | None] = {}
        self._read: dict[tuple[type, Any], dict[str, Any]] = {}
        self._new: list[Any] = []

    def get(self, entity: type[T], ident: Any, *, lock: bool = False) -> T | None:
        """Return a row, read once; `lock` makes other writers of it wait, where they can."""
        key = ident if isinstance(ident, tuple) else (ident,)
        if (entity, key) not in self._rows:
            found = self._connection.execute(_select(_table(entity), lock), _name_key(key)).first()
            self._rows[entity, key] = None
            if found is not None:
                self._read[entity, key] = found._asdict()
                self._rows[entity, key] = SimpleNamespace(**found._asdict())
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

    def add(self, instance: object) -> None:
        """Insert a new row when `flush` is called."""
        self._new.append(instance)

    def flush(self) -> None:
        """Write what is new, in the order in which it came, and what was changed."""
        for (entity, key), before in self._read.items():
            after = vars(self._rows[entity, key])
            changed = {name: after[name] for name in before if after[name] is not before[name]}
            if changed:
                self._connection.execute(
                    _update(_table(entity), tuple(changed)),
                    _name_key(key) | {f"new_{name}": value for name, value in changed.items()},
                )
        for instance in self._new:
            values = {
                name: value for name, value in vars(instance).items() if not name.startswith("_")
            }
            self._connection.execute(_insert(_table(type(instance))), values)


def _name_key(key: tuple[Any, ...]) -> dict[str, Any]:
    return {f"key_{place}": part for place, part in enumerate(key)}


def _table(entity: type) -> Table:
    return cast(Table, cast(type[DeclarativeBase], entity).__table__)


def _is_named(table: Table) -> list[Any]:
    """Return the conditions that choose the row of a primary key."""
    columns = [table.c[column.name] for column in table.primary_key]
    return [column == bindparam(f"key_{place}") for place, column in enumerate(columns)]


@lru_cache
def _select(table: Table, lock: bool) -> Executable:
    chosen = select(table).where(*_is_named(table))
    return chosen.with_for_update() if lock else chosen


@lru_cache
def _update(table: Table, names: tuple[str, ...]) -> Executable:
    values = {name: bindparam(f"new_{name}", type_=table.c[name].type) for name in names}
    return update(table).where(*_is_named(table)).values(values)


@lru_cache
def _insert(table: Table) -> Executable:
    return insert(table)

"""Frozen objects that cross an edge (a process, a JSON column, a file) as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self


@dataclass(frozen=True)
class Message:
    """A frozen object whose plain data is a dict of its fields, by their names."""

    READ: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}
    """Fields that JSON holds in another form, each with the function that reads it."""
    RARE: ClassVar[frozenset[str]] = frozenset()
    """Fields that are left out of plain data while they are None or an empty tuple."""

    def to_dict(self) -> dict[str, object]:
        """Return plain data, as JSON holds it."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {
            name: make_plain(value)
            for name, value in values
            if name not in self.RARE or value not in (None, ())
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read plain data back; what is missing there, or None, gets the field's default."""
        names = {each.name for each in fields(cls)}
        known = {n: value for n, value in content.items() if n in names and value is not None}
        for name in cls.READ.keys() & known.keys():
            known[name] = cls.READ[name](known[name])
        return cls(**known)


def make_plain(value: object) -> object:
    """Return a field's value as JSON holds it."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [make_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value

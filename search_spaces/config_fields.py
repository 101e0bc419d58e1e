"""Reads and replaces what the path of a parameter names in a config.

Behind its section a path names a field, such as `lr`, or an item of a field that is a list, such as
`betas.1`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def read_field(config: Mapping[str, Any], field: str) -> Any:
    """Return the value of a field, or of an item of a list.

    >>> read_field({"lr": 0.1, "betas": (0.9, 0.999)}, "betas.1")
    0.999

    Raises:
        LookupError: if there is no such field or item.
    """
    name, _, item = field.partition(".")
    if not item:
        return config[name]
    return config[name][_read_place(config[name], item)]


def replace_fields(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with which a config has other values in some fields, or items of lists.

    >>> replace_fields({"lr": 0.1, "betas": (0.9, 0.999)}, {"betas.1": 0.99})
    {'betas': [0.9, 0.99]}

    Raises:
        ValueError: if there is no such item.
    """
    changed: dict[str, Any] = {}
    for field, value in changes.items():
        name, _, item = field.partition(".")
        if item:
            try:
                items = list(changed.get(name, config[name]))
                items[_read_place(items, item)] = value
            except (LookupError, TypeError):
                raise ValueError(f"there is no '{field}'") from None
            changed[name] = items
        else:
            changed[name] = value
    return changed


def list_fields(config: BaseModel) -> list[str]:
    """Return what a search may name in a config: its fields, and of lists the items."""
    found = []
    for name in type(config).model_fields:
        value = getattr(config, name)
        is_list = isinstance(value, list | tuple)
        found += [f"{name}.{place}" for place in range(len(value))] if is_list else [name]
    return found


def _read_place(items: Any, item: str) -> int:
    if not isinstance(items, list | tuple) or item not in map(str, range(len(items))):
        raise LookupError(item)
    return int(item)

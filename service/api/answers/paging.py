"""Cursors: where a page of a list ended, as a string. Runs in the service's process."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from eigensweep.search_spaces.errors import SpecError

T = TypeVar("T")
Part = float | int | str
"""A sorted column's value."""
LARGEST = 2**63 - 1
"""Of the whole numbers that a database takes."""


def encode(sort: str, key: Sequence[Part]) -> str:
    """Return the cursor of a page sorted by `sort` whose last item has this key.

    >>> decode("value", encode("value", [0.5, 7]), (float, int))
    [0.5, 7]
    """
    text = json.dumps([sort, *key], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def cut(
    found: Sequence[T], limit: int, sort: str, find_key: Callable[[T], Sequence[Part]]
) -> tuple[Sequence[T], str | None]:
    """Return the items of a page, of which one more was looked for, and the cursor of the next."""
    page = found[:limit]
    return page, encode(sort, find_key(page[-1])) if len(found) > limit else None


def decode(sort: str, cursor: str | None, kinds: Sequence[type]) -> list[Part] | None:
    """Return the key in a cursor, None for no cursor.

    Raises:
        SpecError: if it is no cursor of a list with this order.
    """
    if cursor is None:
        return None
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        was_sorted_by: str
        key: list[Part]
        was_sorted_by, *key = json.loads(base64.urlsafe_b64decode(padded))
        if was_sorted_by != sort or [type(part) for part in key] != list(kinds):
            raise ValueError(cursor)
        for part in key:
            if isinstance(part, str):
                part.encode()  # half of a surrogate pair is no text
            elif isinstance(part, int) and abs(part) > LARGEST:
                raise ValueError(cursor)
    except (ValueError, TypeError, binascii.Error) as error:
        raise SpecError(
            "cursor",
            f"this is no cursor of a list sorted by '{sort}'; take 'next_cursor' from the page "
            "before, asked for with the same 'sort'",
            expected="the next_cursor of the page before",
            got=cursor,
        ) from error
    return key

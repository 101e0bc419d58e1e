"""Values as text on pages. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from rich.filesize import decimal

from eigensweep.search_spaces.labels import (
    describe_settings,
    format_done,
    format_share,
    format_value,
)

MISSING = "–"
"""Stands where there is no value."""


def show_number(value: float | None) -> str:
    """Return what was measured: four digits that count, whole numbers and large ones with commas.

    The scripts of the pages do the same (`digits` of `plots.js`).

    >>> [show_number(value) for value in (0.0123456, 1 / 30000, -3.2234, 12345.6, 5924, None)]
    ['0.01235', '3.333e-05', '−3.223', '12,346', '5,924', '–']
    """
    if value is None:
        return MISSING
    if isinstance(value, int):
        return _with_minus(f"{value:,}")
    return _with_minus(f"{value:,.0f}" if 1e3 <= abs(value) < 1e4 else format_value(value))


def show_gap(value: float) -> str:
    """Return a difference with its sign.

    >>> show_gap(0.25), show_gap(-0.25)
    ('+0.25', '−0.25')
    """
    return f"{'+' if value > 0 else ''}{show_number(value)}"


def show_share(ratio: float | None) -> str:
    """Return a part of something, such as the baseline, in percent."""
    return MISSING if ratio is None else _with_minus(format_share(ratio))


def _with_minus(text: str) -> str:
    """Return a number with the sign that plots have, too."""
    return text.replace("-", "−", 1) if text.startswith("-") else text


def show_exactly(value: Any) -> str:
    """Return a value of a configuration with all of its digits."""
    if value is None:
        return MISSING
    return repr(value) if isinstance(value, float) else format_value(value)


def show_duration(seconds: float | None) -> str:
    """Return a duration in words, two units at most.

    >>> [show_duration(s) for s in (0.41, 71, 7325, 200_000)]
    ['0.4 s', '1 min 11 s', '2 h 2 min', '2 d 7 h']
    """
    if seconds is None:
        return MISSING
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = timedelta(seconds=round(seconds))
    hours, rest = divmod(whole.seconds, 3600)
    parts = [(whole.days, "d"), (hours, "h"), (rest // 60, "min"), (rest % 60, "s")]
    first = next(place for place, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def show_time(moment: datetime | None) -> str:
    """Return a time in UTC, to the minute."""
    return MISSING if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def show_percent(fraction: float | None) -> str:
    """Return how much is done, in percent."""
    return MISSING if fraction is None else format_done(fraction)


def flatten(content: Any, path: str = "") -> Iterable[tuple[str, Any]]:
    """Yield the dotted path and value of every field of a configuration.

    >>> list(flatten({"model": {"name": "lstm"}, "seed": 0}))
    [('model.name', 'lstm'), ('seed', 0)]
    """
    if isinstance(content, Mapping) and content:
        for key, inner in content.items():
            yield from flatten(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def last_line(text: str | None) -> str:
    """Return the last line of an error, which says what went wrong."""
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else "no reason was recorded"


FILTERS = {
    "number": show_number,
    "gap": show_gap,
    "share": show_share,
    "exactly": show_exactly,
    "duration": show_duration,
    "bytes": decimal,
    "time": show_time,
    "percent": show_percent,
    "settings": describe_settings,
    "flatten": flatten,
    "last_line": last_line,
}

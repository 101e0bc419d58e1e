"""Values as text on pages. Runs in the service's process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from rich.filesize import decimal

from eigensweep.search_spaces.labels import format_value

MISSING = "–"
"""Stands where there is no value."""


def show_number(value: float | None) -> str:
    """Return a number with four digits, whole ones with all of theirs.

    >>> show_number(0.0123456), show_number(12345), show_number(22000.0), show_number(None)
    ('0.01235', '12,345', '22,000', '–')
    """
    if value is None:
        return MISSING
    return f"{value:,}" if isinstance(value, int) else format_value(value)


def show_value(value: Any) -> str:
    """Return any value of a setting."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: MISSING}[value]
    return format_value(value)


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


def show_bytes(size: int) -> str:
    """Return a size in the unit that suits it.

    >>> show_bytes(512), show_bytes(2_345_678)
    ('512 bytes', '2.3 MB')
    """
    return decimal(size)


def show_time(moment: datetime | None) -> str:
    """Return a time in UTC, to the minute."""
    return MISSING if moment is None else f"{moment:%Y-%m-%d %H:%M}"


def show_percent(fraction: float | None) -> str:
    """Return a fraction in percent."""
    return MISSING if fraction is None else f"{100 * fraction:.0f} %"


def label_paths(paths: Iterable[str]) -> Mapping[str, str]:
    """Return a short label for each dotted path; two with the same one keep their whole paths.

    >>> list(label_paths(["optimizer.name", "optimizer.lr", "model.size", "task.size"]).values())
    ['optimizer', 'lr', 'model.size', 'task.size']
    """
    labels = {path: _label(path) for path in paths}
    uses = Counter(labels.values())
    return {path: label if uses[label] == 1 else path for path, label in labels.items()}


def _label(path: str) -> str:
    rest, _, last = path.rpartition(".")
    return rest.rpartition(".")[2] if rest and last == "name" else last


def show_settings(params: Mapping[str, Any]) -> str:
    """Return settings in one line.

    >>> show_settings({"optimizer.name": "rmsprop", "optimizer.lr": 0.001})
    'optimizer=rmsprop lr=0.001'
    """
    labels = label_paths(params)
    return " ".join(f"{labels[path]}={show_value(value)}" for path, value in params.items())


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
    "value": show_value,
    "duration": show_duration,
    "bytes": show_bytes,
    "time": show_time,
    "percent": show_percent,
    "settings": show_settings,
    "flatten": flatten,
    "last_line": last_line,
}

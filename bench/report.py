"""How numbers are told: as aligned text on the terminal, and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> str:
    """Return rows as aligned text under the headings of their keys; what nobody has is left out.

    >>> rows = [{"model": "a", "ms": 1.0}, {"model": "bc", "ms": 123.456}]
    >>> print(table(rows, {"model": "model", "ms": "one step", "mb": "MB"}))
    model  one step
    a          1.00
    bc        123.5
    """
    columns = [key for key in headings if any(row.get(key) is not None for row in rows)]
    cells = [[headings[key] for key in columns]]
    cells += [[_written(row.get(key)) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *rest in cells:
        right = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *right)))
    return "\n".join(lines)


def _written(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return str(value)


def say(text: str) -> None:
    """Write to the terminal at once: a run takes long."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def describe(environment: Mapping[str, Any]) -> None:
    """Say what the machine is."""
    for key, value in environment.items():
        say(f"{key.replace('_', ' ')}: {value}")


def write(numbers: Mapping[str, Any], path: Path) -> None:
    """Write numbers as JSON, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    say(f"written: {path}")

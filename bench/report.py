"""Output of the measurements: tables on the terminal, JSON files; and their common options."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def new_parser(docstring: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help prints the docstring of a module, line by line."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_seconds(parser: argparse.ArgumentParser) -> None:
    """Add the option that ends the measurement of slow variants."""
    parser.add_argument(
        "--seconds",
        type=float,
        default=10,
        help="a variant that has taken so much time sits out after its third round; "
        "default: %(default)s",
    )


def add_quick(parser: argparse.ArgumentParser) -> None:
    """Add the option of a trial run."""
    parser.add_argument(
        "--quick", action="store_true", help="use small sizes, to see whether everything works"
    )


def add_json(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the option that says where the numbers are written."""
    parser.add_argument(
        "--json",
        type=Path,
        metavar="PATH",
        default=Path(f".bench/{name}.json"),
        help="write the numbers to this file; default: %(default)s",
    )


def table(rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> str:
    """Return rows as an aligned table with these headings; a column without any value is left out.

    >>> rows = [{"model": "a", "ms": 1.0}, {"model": "bc", "ms": 123.456}]
    >>> print(table(rows, {"model": "model", "ms": "one step", "mb": "MB"}))
    model  one step
    a          1.00
    bc        123.5
    """
    columns = [key for key in headings if any(row.get(key) is not None for row in rows)]
    cells = [[headings[key] for key in columns]]
    cells += [[_format_cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = []
    for first, *rest in cells:
        right = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join((first.ljust(widths[0]), *right)))
    return "\n".join(lines)


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 100 else f"{value:.2f}"
    return str(value)


def say(text: str) -> None:
    """Print a line at once, since a run takes long."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def describe(environment: Mapping[str, Any]) -> None:
    """Print what is known of the machine."""
    for key, value in environment.items():
        say(f"{key.replace('_', ' ')}: {value}")


def write(numbers: Mapping[str, Any], path: Path) -> None:
    """Write numbers as JSON, and print the path of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(numbers, indent=2, allow_nan=False) + "\n")
    say(f"written: {path}")

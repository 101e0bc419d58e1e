"""Values and tables as text.

The table of text is our own, as it takes 10 microseconds a row: rich takes 1.5 milliseconds, which
is 15 seconds for the trials of a large grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from rich.cells import cell_len

from eigensweep.search_spaces.labels import describe_settings, format_value


def align_columns(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return rows as text in aligned columns; nothing is folded or cut.

    >>> print(align_columns(["arm", "value"], [["lstm", "0.5"], ["scornn", "0.25"]]))
    arm     value
    lstm    0.5
    scornn  0.25
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            text + " " * (width - cell_len(text)) for text, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def format_html(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return rows as an HTML table for a notebook, without heads where there are none.

    >>> format_html(["arm"], [["<lstm>"]])
    '<table><tr><th>arm</th></tr><tr><td>&lt;lstm&gt;</td></tr></table>'
    """
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    if heads:
        lines.insert(0, "".join(f"<th>{escape(head)}</th>" for head in heads))
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def format_cell(column: str, value: Any) -> str:
    """Return the value of a column as text.

    >>> format_cell("settings", {"optimizer.name": "rmsprop", "optimizer.lr": 0.001})
    'optimizer=rmsprop lr=0.001'
    >>> format_cell("ratio", 0.51234)
    '0.512'
    >>> format_cell("interval", (0.125, 0.5))
    '0.125 to 0.5'
    >>> format_cell("value", None)
    '-'
    """
    if value is None or value == {}:
        return "-"
    if column == "settings":
        return describe_settings(value)
    if isinstance(value, tuple):
        return " to ".join(map(format_value, value))
    if column == "parameters":
        return f"{value:,}"
    if column == "seconds":
        return f"{value:.1f}"
    if column == "ratio":
        return f"{value:.3f}"
    return format_value(value)

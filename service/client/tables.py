"""Values and tables as text.

The table of text is our own, as it takes 10 microseconds a row: rich takes 1.5 milliseconds, which
is 15 seconds for the trials of a large grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rich.cells import cell_len


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
        labels = shorten_paths(value)
        return " ".join(f"{labels[path]}={format_value(v)}" for path, v in value.items())
    if isinstance(value, tuple):
        return " to ".join(map(format_value, value))
    if column == "parameters":
        return f"{value:,}"
    if column == "seconds":
        return f"{value:.1f}"
    if column == "ratio":
        return f"{value:.3f}"
    return format_value(value)


def shorten_paths(paths: Iterable[str]) -> Mapping[str, str]:
    """Return a short label for each dotted path: its last word, or more.

    A name is labelled with what it names. Two paths with the same label keep their whole paths.

    >>> labels = shorten_paths(["optimizer.name", "optimizer.name_orth", "training.steps"])
    >>> list(labels.values())
    ['optimizer', 'optimizer_orth', 'steps']
    >>> list(shorten_paths(["task.size", "model.size"]).values())
    ['task.size', 'model.size']
    """
    labels = {path: _label(path) for path in paths}
    uses = Counter(labels.values())
    return {path: label if uses[label] == 1 else path for path, label in labels.items()}


def _label(path: str) -> str:
    rest, _, last = path.rpartition(".")
    is_name = last == "name" or last.startswith("name_")
    return rest.rpartition(".")[2] + last.removeprefix("name") if rest and is_name else last


def format_value(value: Any) -> str:
    """Return a number with four digits, anything else as `str` gives it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)

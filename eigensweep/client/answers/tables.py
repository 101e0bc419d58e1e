"""Values and tables: as text, on a terminal, in a notebook and in LaTeX.

The table of text is our own, as it takes 10 microseconds a row: rich takes 1.5 milliseconds, which
is 15 seconds for the trials of a large grid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import isfinite
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from eigensweep.search_spaces.labels import describe_settings, format_share, format_value

DROPPED_FIRST: Final = (
    *(
        "baseline",
        "created (UTC)",
        "project",
        "owner",
        "seconds",
        "parameters",
        "mlflow",
        "changes",
    ),
    *("sd", "test_sd", "ratio", "test_interval", "n", "arm", "test", "interval", "state"),
)
"""Columns that a narrow terminal does without, the least important first."""
DRAWN_ROWS: Final = 500
"""A longer table is printed as plain text."""


class Table:
    """Rows below heads. `str` aligns them in columns; `show` draws them on a terminal."""

    def __init__(self, heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
        self.heads = tuple(heads)
        self.rows = [["-" if cell is None else str(cell) for cell in row] for row in rows]

    def __str__(self) -> str:
        return align_columns(self.heads, self.rows) if self.rows else "none"

    def is_drawn(self, screen: Console) -> bool:
        """Return whether `show` draws it: on a terminal, if it is not too long."""
        return screen.is_terminal and 0 < len(self.rows) <= DRAWN_ROWS

    def show(
        self, screen: Console, last: Sequence[Text] | None = None, styles: Sequence[str] = ()
    ) -> None:
        """Print it; drawn, it fits the width of a terminal, and no number is cut.

        The widest column of several words is folded. If that is not enough, the columns of
        `DROPPED_FIRST` are left out one by one, and named below the table. Where even the rest is
        too wide, the terminal folds whole lines itself. Where it is drawn, `last` replaces the
        cells of the last column, and rows have `styles`.
        """
        if not self.is_drawn(screen):
            screen.print(str(self), markup=False)
            return
        columns = {
            head: [Text(text) for text in column]
            for head, column in zip(self.heads, zip(*self.rows, strict=True), strict=True)
        }
        if last is not None:
            columns[self.heads[-1]] = list(last)
        widest, words = dict[str, int](), dict[str, int]()
        for head, column in columns.items():
            texts = [head, *(text.plain for text in column)]
            widest[head] = max(map(cell_len, texts))
            words[head] = max(
                (cell_len(word) for text in texts for word in text.split()), default=0
            )
        folded = max(self.heads, key=lambda head: (widest[head] > words[head], widest[head]))
        widths = {**widest, folded: words[folded]}
        shown, dropped = list(self.heads), []
        for head in DROPPED_FIRST:
            if _total(widths, shown) <= screen.width:
                break
            if head in shown and head != folded:
                shown.remove(head)
                dropped.append(head)
        table = RichTable(box=None, header_style="bold", pad_edge=False)
        for head in shown:
            table.add_column(head, no_wrap=head != folded)
        for n in range(len(self.rows)):
            table.add_row(*(columns[head][n] for head in shown), style=styles[n] if styles else "")
        width = max(_total(widths, shown), screen.width)
        Console(file=screen.file, force_terminal=True, width=width, highlight=False).print(table)
        if dropped:
            note = f"not shown: {', '.join(dropped)}; a wider terminal or --json shows them"
            screen.print(note, soft_wrap=True)


def _total(widths: dict[str, int], shown: Sequence[str]) -> int:
    """Return the width of a table with these columns, the gaps of two included."""
    return sum(widths[head] for head in shown) + 2 * (len(shown) - 1)


def describe_rows(rows: Sequence[tuple[str, Any]], width: int | None = None) -> str:
    """Return a line for each pair of a name and words; `width` is that of the names.

    >>> print(describe_rows([("state", "running"), ("trials", 3)]))
    state   running
    trials  3
    """
    width = width or max(len(head) for head, _ in rows) + 2
    return "\n".join(f"{head:<{width}}{words}" for head, words in rows)


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
    '51.2 %'
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
        return format_share(value)
    return format_value(value)


def format_arm(trial: Mapping[str, Any]) -> str:
    """Return the arm of a trial, with what the search chose if it chose something.

    >>> format_arm({"arm": "lstm", "params": {"optimizer.lr": 0.001}})
    'lstm lr=0.001'
    >>> format_arm({"arm": "lstm", "params": {}})
    'lstm'
    """
    return f"{trial['arm']} {describe_settings(trial.get('params') or {})}".rstrip()


LATEX = str.maketrans({sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
})  # fmt: skip
SMALL, LARGE = 0.01, 1e5
"""Numbers between these are written without a power of ten in LaTeX."""


def format_latex_table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    r"""Return rows as a LaTeX table that needs the package booktabs; heads and texts are escaped.

    >>> print(format_latex_table(["rank", "lr"], [[1, 3.3e-5]]))
    \begin{tabular}{rr}
    \toprule
    rank & lr \\
    \midrule
    1 & $3.3\times10^{-5}$ \\
    \bottomrule
    \end{tabular}
    """
    cells = [list(row) for row in rows]
    texts = [any(isinstance(value, str) for value in column) for column in zip(*cells, strict=True)]
    align = "".join("l" if is_text else "r" for is_text in texts) or "l" * len(heads)
    lines = [[head.translate(LATEX) for head in heads], *(map(format_latex, row) for row in cells)]
    head, *body = [f"{' & '.join(line)} \\\\" for line in lines]
    begin = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*begin, *body, r"\bottomrule", r"\end{tabular}"])


def format_latex(value: Any) -> str:
    """Return a value as LaTeX: a number with three digits, a mean with both ends of its interval.

    >>> format_latex(22395), format_latex(0.001), format_latex((0.5, 0.25, 0.75))
    ('22{,}395', '$10^{-3}$', '$0.5$ [$0.25$, $0.75$]')
    """
    if value is None:
        return "--"
    if isinstance(value, tuple):
        mean, low, high = map(format_latex, value)
        return f"{mean} [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).translate(LATEX)
    if isinstance(value, int):
        return f"{value:,}".replace(",", "{,}")
    if not isfinite(value):
        return r"$\infty$" if value > 0 else "--"
    if value == 0 or SMALL <= abs(value) < LARGE:
        return f"${value:.3g}$" if abs(value) < 999.5 else f"${value:.0f}$"
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    digits = mantissa.rstrip("0").rstrip(".")
    factor = {"1": "", "-1": "-"}.get(digits, rf"{digits}\times")
    return f"${factor}10^{{{int(exponent)}}}$"

"""Trials as a table, best first, beside the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from eigensweep.client.answers.tables import (
    Table,
    align_columns,
    format_cell,
    format_html,
    format_latex_table,
)
from eigensweep.results.trial_rows import Row, make_frame, make_row
from eigensweep.search_spaces.labels import shorten_paths

OWN = ("rank", "arm", "validation", "test", "parameters")
"""Heads of a LaTeX table beside those of the settings."""
SPREAD = ("n", "sd", "interval", "test_sd", "test_interval")
"""Columns that say something only where a trial trained several times."""

COLUMNS = (
    *("rank", "trial", "arm", "settings", "changes", "state", "n", "value", "sd", "interval"),
    *("test", "test_sd", "test_interval", "baseline", "ratio", "parameters", "seconds", "mlflow"),
)
SHOWN_ROWS = 20
"""Rows that a Python prompt shows."""


class TrialTable(list[Row]):
    """One dict for each trial, best first; prints as a table. `to_pandas()` makes a DataFrame.

    `value` is the mean over `n` replicates on validation data, `test` that on test data. Each has
    its standard deviation and its 95% interval. `ratio` is value over baseline. Where a lower
    value is better, a ratio below 1 means that the model beats the memoryless baseline. `changes`
    says how often population-based training has replaced the trial, which began with `settings`.
    """

    @classmethod
    def rank(cls, experiment: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> TrialTable:
        """Return rows for trials that come in the service's ranking (`sort=value`)."""
        return cls(
            make_row(place, trial, experiment) for place, trial in enumerate(trials, start=1)
        )

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with a column for each parameter and metric, by trial.

        It is the table that `Experiment.export` writes: `value` is the mean on validation data
        with its `sd` and its interval from `low` to `high`, and all metrics of the task follow.
        """
        return make_frame([self]).set_index("trial")

    def to_latex(self, limit: int | None = None) -> str:
        """Return a LaTeX table of the ranked trials, for the package booktabs.

        It has a column for each parameter that varies, and means with their 95% intervals where
        there are several seeds. `limit` is the largest number of rows.
        """
        rows = [row for row in self if row["rank"] is not None][:limit]
        short = shorten_paths(dict.fromkeys(path for row in rows for path in row["settings"]))
        labels = {path: path if label in OWN else label for path, label in short.items()}
        columns: dict[str, list[Any]] = {
            "rank": [row["rank"] for row in rows],
            "arm": [row["arm"] for row in rows],
            **{
                label: [row["settings"].get(path) for row in rows] for path, label in labels.items()
            },
            "validation": [_join_mean(row["value"], row["interval"]) for row in rows],
            "test": [_join_mean(row["test"], row["test_interval"]) for row in rows],
            "parameters": [row["parameters"] for row in rows],
        }
        known = {head: cells for head, cells in columns.items() if not rows or set(cells) - {None}}
        return format_latex_table(list(known), zip(*known.values(), strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it prints.

        Left out are those on spread where no trial has replicates, `settings` where nothing
        varies, and `changes` where population-based training has replaced none.
        """
        hidden: tuple[str, ...] = () if any((row["n"] or 0) > 1 for row in self) else SPREAD
        hidden += tuple(head for head in ("settings", "changes") if not any(r[head] for r in self))
        return tuple(column for column in COLUMNS if column not in hidden)

    def format_rows(self) -> list[list[str]]:
        """Return the cells of each row as text."""
        return [[format_cell(column, row[column]) for column in self.columns] for row in self]

    def show(self, screen: Console) -> None:
        """Print it; drawn, MLflow's column is a short link and the best row is green."""
        if not self:
            screen.print(str(self), markup=False)
            return
        addresses = (row["mlflow"] for row in self)
        links = [Text("run", f"link {url}") if url else Text("-") for url in addresses]
        styles = ["green" if row["rank"] == 1 else "" for row in self]
        Table(self.columns, self.format_rows()).show(screen, links, styles)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return format_html(self.columns, self.format_rows())

    def __str__(self) -> str:
        return align_columns(self.columns, self.format_rows())

    def __repr__(self) -> str:
        shown = str(TrialTable(self[:SHOWN_ROWS]))
        more = len(self) - SHOWN_ROWS
        return shown if more <= 0 else f"{shown}\n... and {more} more; print(...) shows all"


def _join_mean(
    mean: float | None, interval: Sequence[float] | None
) -> float | Sequence[float | None] | None:
    """Return a mean, with both ends of its interval where there is one."""
    return mean if interval is None else (mean, *interval)

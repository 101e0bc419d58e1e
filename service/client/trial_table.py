"""Trials as a table, best first, beside the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.tables import align_columns, format_cell, format_html
from eigensweep.workers.shared.states import RANKED

COLUMNS = (
    "rank",
    "trial",
    "arm",
    "settings",
    "state",
    "value",
    "baseline",
    "ratio",
    "parameters",
    "seconds",
    "mlflow",
)


class TrialTable(list[JsonObject]):
    """One dict for each trial, best first; prints as a table. `to_pandas()` makes a DataFrame.

    `ratio` is value over baseline. Where a lower value is better, a ratio below 1 means that the
    model beats the memoryless baseline.
    """

    @classmethod
    def rank(cls, experiment: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]) -> TrialTable:
        """Return rows for trials that come in the service's ranking (`sort=value`)."""
        return cls(
            _make_row(place, trial, experiment.get("baseline"))
            for place, trial in enumerate(trials, start=1)
        )

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one column for each searched parameter."""
        import pandas as pd  # type: ignore[import-untyped]

        flat = [{k: v for k, v in row.items() if k != "settings"} | row["settings"] for row in self]
        return pd.DataFrame(flat).set_index("trial")

    def format_rows(self, columns: Iterable[str] = COLUMNS) -> list[list[str]]:
        """Return the cells of each row as text."""
        return [[format_cell(column, row[column]) for column in columns] for row in self]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return format_html(COLUMNS, self.format_rows())

    def __str__(self) -> str:
        return align_columns(COLUMNS, self.format_rows())


def _make_row(place: int, trial: Mapping[str, Any], baseline: float | None) -> JsonObject:
    value, parameters = trial.get("value"), trial.get("parameters")
    return {
        "rank": place if value is not None and trial["state"] in RANKED else None,
        "trial": trial["number"],
        "arm": trial["arm"],
        "settings": dict(trial.get("params") or {}),
        "state": trial["state"],
        "value": value,
        "baseline": baseline,
        "ratio": None if value is None or not baseline else value / baseline,
        "parameters": parameters["free"] if isinstance(parameters, Mapping) else parameters,
        "seconds": trial.get("seconds"),
        "mlflow": (trial.get("links") or {}).get("mlflow"),
    }

"""Trials as a table, best first, beside the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from eigensweep.service.client.connection import JsonObject
from eigensweep.service.client.tables import align_columns, format_cell, format_html
from eigensweep.workers.shared.states import RANKED

SPREAD = ("n", "sd", "interval", "test_sd", "test_interval")
"""Columns that say something only where a trial trained several times."""

COLUMNS = (
    "rank",
    "trial",
    "arm",
    "settings",
    "changes",
    "state",
    "n",
    "value",
    "sd",
    "interval",
    "test",
    "test_sd",
    "test_interval",
    "baseline",
    "ratio",
    "parameters",
    "seconds",
    "mlflow",
)


NUMBERS = ("value", "sd", "low", "high", "test", "test_sd", "test_low", "test_high", "baseline")
"""Columns of a frame that are numbers also where all of them are missing."""


class TrialTable(list[JsonObject]):
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
            _make_row(place, trial, experiment) for place, trial in enumerate(trials, start=1)
        )

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one column for each searched parameter.

        An interval is two columns, such as `low` and `high`, `test_low` and `test_high`.
        """
        import pandas as pd  # type: ignore[import-untyped]

        frame = pd.DataFrame(map(_flatten, self)).set_index("trial")
        numbers = [column for column in NUMBERS if column in frame]
        return frame.astype(dict.fromkeys(numbers, "float64"))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it prints.

        Left out are those on spread where no trial has replicates, and `changes` where
        population-based training has replaced none.
        """
        hidden = () if any((row["n"] or 0) > 1 for row in self) else SPREAD
        if not any(row["changes"] for row in self):
            hidden = (*hidden, "changes")
        return tuple(column for column in COLUMNS if column not in hidden)

    def format_rows(self) -> list[list[str]]:
        """Return the cells of each row as text."""
        return [[format_cell(column, row[column]) for column in self.columns] for row in self]

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return format_html(self.columns, self.format_rows())

    def __str__(self) -> str:
        return align_columns(self.columns, self.format_rows())


def _make_row(place: int, trial: Mapping[str, Any], experiment: Mapping[str, Any]) -> JsonObject:
    value, parameters = trial.get("value"), trial.get("parameters")
    baseline, statistics = experiment.get("baseline"), trial.get("statistics") or {}
    valid = statistics.get("value") or {}
    test = statistics.get(f"test/{(experiment.get('metric') or {}).get('name')}") or {}
    return {
        "rank": place if value is not None and trial["state"] in RANKED else None,
        "trial": trial["number"],
        "arm": trial["arm"],
        "settings": dict(trial.get("params") or {}),
        "changes": len(trial.get("lineage") or ()),
        "state": trial["state"],
        "n": valid.get("n"),
        "value": value,
        "sd": valid.get("sd"),
        "interval": _find_ends(valid),
        "test": test.get("mean"),
        "test_sd": test.get("sd"),
        "test_interval": _find_ends(test),
        "baseline": baseline,
        "ratio": None if value is None or not baseline else value / baseline,
        "parameters": parameters["free"] if isinstance(parameters, Mapping) else parameters,
        "seconds": trial.get("seconds"),
        "mlflow": (trial.get("links") or {}).get("mlflow"),
    }


def _find_ends(statistics: Mapping[str, Any]) -> tuple[float, float] | None:
    low, high = statistics.get("low"), statistics.get("high")
    return None if low is None or high is None else (low, high)


def _flatten(row: JsonObject) -> JsonObject:
    """Return a row of plain values: its settings and the ends of its intervals as columns."""
    flat: JsonObject = {}
    for column, value in row.items():
        if column == "settings":
            continue
        if column.endswith("interval"):
            low, high = value or (None, None)
            name = column.removesuffix("interval")
            flat |= {f"{name}low": low, f"{name}high": high}
        else:
            flat[column] = value
    return flat | row["settings"]

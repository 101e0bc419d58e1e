"""Trials as a table, best first, beside the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

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


class TrialTable(list[dict[str, Any]]):
    """One dict for each trial, best first; prints as a table. `to_pandas()` makes a DataFrame.

    `ratio` is value over baseline: below 1 a model remembers something, where less is better.
    """

    @classmethod
    def ranked(
        cls, experiment: Mapping[str, Any], trials: Iterable[Mapping[str, Any]]
    ) -> TrialTable:
        """Return the service's trials as rows: those with a rank first, then the rest by number."""
        sign = -1 if (experiment.get("metric") or {}).get("better") == "higher" else 1
        baseline = experiment.get("baseline")

        def order(trial: Mapping[str, Any]) -> tuple[int, float, int]:
            value = trial.get("value")
            if value is None or trial["state"] not in {"completed", "reused"}:
                return 1, 0.0, trial["number"]
            return 0, sign * value, trial["number"]

        rows = cls()
        for place, trial in enumerate(sorted(trials, key=order), start=1):
            value = trial.get("value")
            parameters = trial.get("parameters")
            rows.append(
                {
                    "rank": place if order(trial)[0] == 0 else None,
                    "trial": trial["number"],
                    "arm": trial["arm"],
                    "settings": dict(trial.get("params") or {}),
                    "state": trial["state"],
                    "value": value,
                    "baseline": baseline,
                    "ratio": None if value is None or not baseline else value / baseline,
                    "parameters": parameters["free"]
                    if isinstance(parameters, Mapping)
                    else parameters,
                    "seconds": trial.get("seconds"),
                    "mlflow": (trial.get("links") or {}).get("mlflow"),
                }
            )
        return rows

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one column for each searched parameter."""
        import pandas as pd  # type: ignore[import-untyped]

        flat = [{k: v for k, v in row.items() if k != "settings"} | row["settings"] for row in self]
        return pd.DataFrame(flat).set_index("trial")

    def texts(self, columns: Iterable[str] = COLUMNS) -> list[list[str]]:
        """Return the cells of each row as a person reads them."""
        return [[cell(column, row[column]) for column in columns] for row in self]

    def __str__(self) -> str:
        return aligned(COLUMNS, self.texts())


def cell(column: str, value: Any) -> str:
    """Return one value as a person reads it.

    >>> cell("settings", {"optimizer.lr": 0.001}), cell("ratio", 0.51234), cell("value", None)
    ('lr=0.001', '0.512', '-')
    """
    if value is None or value == {}:
        return "-"
    if column == "settings":
        return " ".join(f"{path.rpartition('.')[2]}={short(v)}" for path, v in value.items())
    if column == "parameters":
        return f"{value:,}"
    if column == "seconds":
        return f"{value:.1f}"
    if column == "ratio":
        return f"{value:.3f}"
    return short(value)


def short(value: Any) -> str:
    """Return a number to four digits, anything else as it is."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def aligned(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return rows as text in aligned columns.

    >>> print(aligned(["arm", "value"], [["lstm", "0.5"], ["scornn", "0.25"]]))
    arm     value
    lstm    0.5
    scornn  0.25
    """
    lines = [list(heads), *(list(row) for row in rows)]
    widths = [max(len(text) for text in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )

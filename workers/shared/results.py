"""A trial's result from those of its replicates: means, with a confidence interval."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin, sqrt, tan
from statistics import fmean, stdev
from typing import Any

CONFIDENCE = 0.95


def summarise(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the result of a trial from those of its replicates, as `Training.result` gives them.

    It has the same keys: numbers are means, `seconds` the sum, `step` the least. Beside them stand
    `replicates`, and of `value` and of each test metric the `standard_error` and the 95% confidence
    interval by Student's t (None for a single replicate). If one diverged, the trial did.
    """
    values = [r["value"] for r in results if r["value"] is not None]
    spread = {"value": values}
    for metric, numbers in _columns([r["test"] for r in results]).items():
        spread[f"test/{metric}"] = numbers
    summary = {
        "outcome": _outcome([r["outcome"] for r in results]),
        "value": fmean(values) if values else None,
        "best_step": _mean_step([r["best_step"] for r in results]),
        "step": min(r["step"] for r in results),
        "valid": _means([r["valid"] for r in results]),
        "test": _means([r["test"] for r in results]),
        "seconds": sum(r["seconds"] for r in results),
        "parameters": results[0]["parameters"],
        "baseline": results[0]["baseline"],
        "constraint": _means([r["constraint"] for r in results]),
        "replicates": len(results),
        "standard_error": {name: standard_error(numbers) for name, numbers in spread.items()},
        "interval": {name: interval(numbers) for name, numbers in spread.items()},
    }
    for name in ("best_test", "last_test"):
        if all(name in r for r in results):
            summary[name] = _means([r[name] for r in results])
    return summary


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean, None for fewer than two values."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def interval(values: Sequence[float]) -> list[float] | None:
    """Return the lower and upper end of the mean's 95% confidence interval, None if unknown."""
    error = standard_error(values)
    if error is None:
        return None
    margin = t_quantile(len(values) - 1) * error
    return [fmean(values) - margin, fmean(values) + margin]


def t_quantile(freedom: int) -> float:
    """Return t with P(|T| < t) = 0.95 for Student's T with so many degrees of freedom.

    Source: Abramowitz & Stegun 26.7.3 and 26.7.4, the exact finite sums, solved by bisection.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 9, 29)]
    [12.706, 4.303, 2.262, 2.045]
    """

    def central(angle: float) -> float:
        odd = freedom % 2
        term, total = (cos(angle) if odd else 1.0), 0.0
        for k in range(2 + odd, freedom + 1, 2):
            total += term
            term *= cos(angle) ** 2 * (k - 1) / k
        return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if central(middle) < CONFIDENCE else (low, middle)
    return sqrt(freedom) * tan(low)


def _outcome(outcomes: Sequence[str | None]) -> str | None:
    if "diverged" in outcomes:
        return "diverged"
    return None if None in outcomes else "completed"


def _mean_step(steps: Sequence[int | None]) -> int | None:
    known = [s for s in steps if s is not None]
    return round(fmean(known)) if known else None


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _means(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(numbers) for name, numbers in _columns(rows).items()}

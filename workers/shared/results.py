"""A trial's result from those of its replicates: means, with a confidence interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import fmean, stdev

from eigensweep.workers.shared.messages import End, Metrics, ReplicateResult, Result

CONFIDENCE = 0.95


def summarise(replicates: Sequence[ReplicateResult]) -> Result:
    """Return the result of a trial: means over its replicates, of which there is at least one.

    `value` and each test metric get a standard error and a 95% confidence interval by Student's t,
    None for a single replicate. If one replicate diverged, the trial did.
    """
    values = [each.value for each in replicates if each.value is not None]
    spread = {"value": values}
    for metric, numbers in _columns(each.test for each in replicates).items():
        spread[f"test/{metric}"] = numbers
    return Result(
        outcome=_outcome(replicates),
        value=fmean(values) if values else None,
        best_step=_mean_step(replicates),
        step=min(each.step for each in replicates),
        valid=_means(each.valid for each in replicates),
        test=_means(each.test for each in replicates),
        seconds=sum(each.seconds for each in replicates),
        parameters=replicates[0].parameters,
        baseline=replicates[0].baseline,
        constraint=_means(each.constraint for each in replicates),
        best_test=_means_if_known([each.best_test for each in replicates]),
        last_test=_means_if_known([each.last_test for each in replicates]),
        replicates=len(replicates),
        standard_error={name: standard_error(numbers) for name, numbers in spread.items()},
        interval={name: interval(numbers) for name, numbers in spread.items()},
        by_replicate=tuple(replicates),
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean, None for fewer than two values."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the lower and upper end of the mean's 95% confidence interval, None if unknown."""
    error = standard_error(values)
    if error is None:
        return None
    margin = t_quantile(len(values) - 1) * error
    return fmean(values) - margin, fmean(values) + margin


def t_quantile(freedom: int) -> float:
    """Return t with P(|T| < t) = 0.95 for Student's T with so many degrees of freedom.

    >>> [round(t_quantile(n), 3) for n in (1, 2, 9, 29)]
    [12.706, 4.303, 2.262, 2.045]
    """
    # Imported here: a single replicate trains where scipy is not installed.
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _outcome(replicates: Sequence[ReplicateResult]) -> End | None:
    outcomes = [each.outcome for each in replicates]
    if "diverged" in outcomes:
        return "diverged"
    return None if None in outcomes else "completed"


def _mean_step(replicates: Sequence[ReplicateResult]) -> int | None:
    known = [each.best_step for each in replicates if each.best_step is not None]
    return round(fmean(known)) if known else None


def _columns(rows: Iterable[Metrics]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _means(rows: Iterable[Metrics]) -> Metrics:
    return {name: fmean(numbers) for name, numbers in _columns(rows).items()}


def _means_if_known(rows: Sequence[Metrics | None]) -> Metrics | None:
    known = [row for row in rows if row is not None]
    return _means(known) if len(known) == len(rows) else None

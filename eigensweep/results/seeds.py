"""A trial's result from those of its replicates: means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean, median

from eigensweep.results.trial_result import End, Metrics, ReplicateResult, Result


def summarise(replicates: Sequence[ReplicateResult]) -> Result:
    """Return the result of a trial: means over its replicates, of which there is at least one.

    `Result.statistics` tells their spread. If one replicate diverged, the trial did; the means are
    those of the others, where there are any.
    """
    kept = [each for each in replicates if each.outcome != "diverged"] or replicates
    values = [each.value for each in kept if each.value is not None]
    times = [each.step_seconds for each in replicates if each.step_seconds is not None]
    return Result(
        outcome=_outcome(replicates),
        value=fmean(values) if values else None,
        best_step=_mean_step(kept),
        step=min(each.step for each in replicates),
        valid=_means(each.valid for each in kept),
        test=_means(each.test for each in kept),
        seconds=sum(each.seconds for each in replicates),
        parameters=replicates[0].parameters,
        baseline=replicates[0].baseline,
        constraint=_means(each.constraint for each in kept),
        best_test=_means_if_known([each.best_test for each in kept]),
        last_test=_means_if_known([each.last_test for each in kept]),
        code=join_codes(each.code for each in replicates),
        step_seconds=median(times) if times else None,
        replicates=len(replicates),
        by_replicate=tuple(replicates),
    )


def join_codes(codes: Iterable[str | None]) -> str | None:
    """Return all codes that have trained something, as `Measures.code` names them.

    >>> join_codes(["a1,b2", None, "a1"])
    'a1,b2'
    """
    each = (code for codes_ in codes if codes_ for code in codes_.split(","))
    return ",".join(dict.fromkeys(each)) or None


def join_seeds(first: Result, further: Result) -> Result:
    """Return the result of a trial over the seeds of both of its results."""
    return summarise([*split_seeds(first), *split_seeds(further)])


def cut_seeds(result: Result, replicates: int) -> Result:
    """Return a result over its first seeds only.

    Raises:
        ValueError: if it does not know the results of so many.
    """
    if len(result.by_replicate) < replicates:
        known = len(result.by_replicate)
        raise ValueError(f"the result has {known} seeds, and {replicates} are wanted")
    return summarise(split_seeds(result)[:replicates])


def split_seeds(result: Result) -> list[ReplicateResult]:
    """Return a result's replicates, each with what is stored once for all of them."""
    return [
        replace(
            each,
            parameters=result.parameters,
            baseline=result.baseline,
            constraint=each.constraint or result.constraint,
        )
        for each in result.by_replicate
    ]


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

"""What is refused when a spec is posted: everything that could only fail on a worker.

Pydantic has validated each field before. Here the search is compared with the configs: each path
exists, each field accepts the values, conditions can hold, the number of trials is limited, and at
least one of the extreme points of each arm keeps the rules about several fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from eigensweep.search_spaces.errors import (
    ConditionError,
    CorpusError,
    GridTooLargeError,
    InvalidPointError,
    SeveralErrors,
    SpecError,
    TrialLimitError,
    UnknownMetricError,
    did_you_mean,
    shorten,
)
from eigensweep.search_spaces.fitting import find_misfits, place_of
from eigensweep.search_spaces.parameters import Choice
from eigensweep.search_spaces.race_words import find_racing_errors
from eigensweep.search_spaces.search_words import find_method_errors
from eigensweep.search_spaces.sections import COSTS, Arm
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.tasks import TASKS

MOST_RUNGS = 1_000
MOST_LISTED = 10_000


def check_spec(spec: ExperimentSpec, data_root: Path | None = None) -> None:
    """Raise an error if anything in the spec could not run; corpora are looked for in `data_root`.

    Raises:
        SpecError: the kind of it that fits, or `SeveralErrors` if more than one thing is wrong.
    """
    errors = find_errors(spec, data_root)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SeveralErrors(errors)


def find_errors(spec: ExperimentSpec, data_root: Path | None = None) -> list[SpecError]:
    """Return all that is wrong; later checks are left out where an earlier kind failed."""
    errors = list(_check_lists(spec))
    errors = errors or [*_check_task(spec, data_root), *find_misfits(spec)]
    errors = errors or [*_check_conditions(spec), *find_method_errors(spec)]
    errors = errors or [*_check_bounds(spec), *find_racing_errors(spec)]
    return errors or list(_check_extremes(spec))


def _check_lists(spec: ExperimentSpec) -> Iterator[SpecError]:
    axes = [axis for arm in spec.arms_ for axis in arm.space.values()]
    listed = sum(axis.size() for axis in axes if isinstance(axis, Choice))
    if listed > MOST_LISTED:
        yield SpecError(
            "search.space",
            f"{listed:,} values are listed over all arms; the limit is {MOST_LISTED:,}. "
            "A range with 'low', 'high' and 'step' needs no list",
            expected=f"at most {MOST_LISTED:,} listed values",
            got=listed,
        )


def _check_task(spec: ExperimentSpec, data_root: Path | None) -> Iterator[SpecError]:
    task = spec.task
    try:
        task.check()
    except ValueError as error:
        yield SpecError("task", str(error))
        return
    try:
        TASKS[task.name].check_corpus(task, data_root)
    except ValueError as error:
        found = CorpusError("task", str(error))
        found.__cause__ = error
        yield found
    names, metric = list(task.objectives), spec.objective.metric
    try:
        task.objective_metric(None if metric is None else str(shorten(metric)))
    except ValueError as error:
        yield UnknownMetricError(
            "objective.metric",
            f"{error}{did_you_mean(str(metric), names)}",
            expected="a metric of the task",
            got=shorten(metric),
            available=names,
        )
        return
    yield from check_against(spec, spec.objective.against)


def check_against(
    spec: ExperimentSpec, against: Sequence[str], place: str = "objective.against"
) -> Iterator[SpecError]:
    """Yield what is wrong with a list of what the objective is weighed against."""
    known = [*COSTS, *(n for n in spec.task.objectives if n != spec.objective_metric.name)]
    for name in dict.fromkeys(against):
        if name not in known or against.count(name) > 1:
            is_known = name in known
            problem = "stands twice" if is_known else f"is none of them{did_you_mean(name, known)}"
            yield UnknownMetricError(
                place,
                f"{spec.objective_metric.name} is weighed against {', '.join(known)}; "
                f"'{shorten(name)}' {problem}",
                expected="costs, or other metrics of the task, each once",
                got=shorten(name),
                available=known,
            )


def _check_conditions(spec: ExperimentSpec) -> Iterator[SpecError]:
    for index, arm in enumerate(spec.arms_):
        try:
            Space({arm.label: arm.space})
        except ConditionError as error:
            path = next((p for p in arm.space if error.path.startswith(f"{p}.when.")), None)
            if path is None:
                place = f"arms.{index}.space" if spec.arms is not None else "search.space"
            else:
                place = place_of(spec, index, path) + error.path[len(path) :]
            yield ConditionError(
                place, error.message, error.expected, shorten(error.got), error.available
            )


def _check_bounds(spec: ExperimentSpec) -> Iterator[SpecError]:
    if spec.search.method != "grid":
        if spec.search.trials is None and spec.limits.trials is None:
            yield TrialLimitError(
                "search.trials",
                f"a {spec.search.method} search does not end by itself; say how many trials",
                expected="an integer of at least 1",
            )
        return
    endless = False
    for index, arm in enumerate(spec.arms_):
        for path, axis in arm.space.items():
            if axis.size() is None:
                endless = True
                yield GridTooLargeError(
                    place_of(spec, index, path),
                    f"a grid needs single values, and '{path}' is a range without a step; list "
                    "values, give a 'step', or search by 'random' or 'tpe' with 'search.trials'",
                    expected="a finite list or range",
                )
    count = None if endless else spec.space().count()
    run = count if spec.limits.trials is None or count is None else min(count, spec.limits.trials)
    if count is not None and run is not None and run > spec.limits.grid:
        yield _too_large(spec.arms_, count, spec.limits.grid)


def _too_large(arms: list[Arm], count: int, limit: int) -> SpecError:
    sizes = {
        (f"{arm.label}: {path}" if len(arms) > 1 else path): axis.size() or 0
        for arm in arms
        for path, axis in arm.space.items()
    }
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:3]
    return GridTooLargeError(
        "search.space",
        f"the grid has {count:,} points and the limit is {limit:,} ('limits.grid'); its largest "
        f"parameters are {', '.join(f'{path} ({size:,} values)' for path, size in largest)}. "
        "Take fewer values, run a sample with 'limits.trials', or search by 'random' or 'tpe' with "
        "'search.trials'",
        expected=f"at most {limit:,} points",
        got=shorten(count),
    )


def _check_extremes(spec: ExperimentSpec) -> Iterator[SpecError]:
    space = spec.space()
    for index, arm in enumerate(spec.arms_):
        first_error: InvalidPointError | None = None
        for point in space.corners(arm.label):
            try:
                config = spec.trial(point)
            except InvalidPointError as error:
                first_error = first_error or error
                continue
            first_error = None
            rungs = spec.rung_count(config)
            if rungs > MOST_RUNGS:
                yield SpecError(
                    "scheduler.rung_every",
                    f"a trial would report at {rungs:,} rungs; the limit is {MOST_RUNGS:,}",
                    expected=f"at least {(config.training.steps or 0) // MOST_RUNGS + 1}",
                    got=spec.scheduler.rung_every,
                )
            break
        if first_error is not None:
            yield _no_point(spec, index, first_error)


def _no_point(spec: ExperimentSpec, index: int, error: InvalidPointError) -> SpecError:
    place = f"arms.{index}" if spec.arms is not None else _section_of(error.message)
    got: dict[str, Any] = error.got
    if not got:
        return InvalidPointError(place, error.message)
    point = ", ".join(f"{path} = {shorten(value)!r}" for path, value in list(got.items())[:8])
    return InvalidPointError(
        place,
        f"{error.message} (at {point}, and no other extreme point of the search is valid)",
        got={path: shorten(value) for path, value in got.items()},
    )


def _section_of(message: str) -> str:
    """Return the section that a rule's message begins with; without one, `model`."""
    first = message.split(" ", 1)[0].rstrip(":")
    return first if first in ("optimizer", "training") else "model"

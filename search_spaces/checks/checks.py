"""What is refused when a spec is posted: everything that could only fail on a worker.

Pydantic has validated each field before. Here the search is compared with the configs: each path
exists, each field accepts the values, conditions can hold, the number of trials is limited, and at
least one of the extreme points of each arm keeps the rules about several fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from eigensweep.common.metric_names import EXPECTED, is_metric_name
from eigensweep.search_spaces.checks.constrained import find_empty_arms, find_unknown_fields
from eigensweep.search_spaces.checks.first_points import find_first_errors, find_invalid_first
from eigensweep.search_spaces.checks.fitting import find_misfits, place_of
from eigensweep.search_spaces.checks.memory import list_extremes
from eigensweep.search_spaces.checks.places import Places
from eigensweep.search_spaces.checks.population import find_population_errors
from eigensweep.search_spaces.checks.race_words import find_racing_errors
from eigensweep.search_spaces.checks.search_words import find_method_errors, find_unread_settings
from eigensweep.search_spaces.checks.task_properties import find_wrong_property
from eigensweep.search_spaces.errors import (
    ConditionError,
    ConstraintError,
    CorpusError,
    GridTooLargeError,
    InvalidPointError,
    SpecError,
    TrialLimitError,
    UnknownMetricError,
    did_you_mean,
    raise_errors,
    shorten,
)
from eigensweep.search_spaces.parameters import Choice
from eigensweep.search_spaces.sections import COSTS, Arm
from eigensweep.search_spaces.space import Point, Space, find_wrong_conditions
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import say_foreign
from eigensweep.tasks import TASKS

MOST_RUNGS = 1_000
MOST_LISTED = 10_000
MOST_NAMED = 5
"""Arms that a message names."""
READS = {
    "task": ("task",),
    "optimizer": ("optimizer", "task"),
    "model": ("model", "task"),
    "training": ("training", "task"),
    "objective": ("objective", "task"),
}
"""Sections of a configuration, each with those that its rules about several fields read."""


def check_spec(spec: ExperimentSpec, data_root: Path | None = None) -> None:
    """Raise an error if anything in the spec could not run; corpora are looked for in `data_root`.

    Raises:
        SpecError: the kind of it that fits, or `SeveralErrors` if more than one thing is wrong.
    """
    raise_errors(find_errors(spec, data_root))


def find_errors(
    spec: ExperimentSpec, data_root: Path | None = None, left_out: Iterable[str] = ()
) -> list[SpecError]:
    """Return all that is wrong, but for what only follows from a mistake that is told.

    `left_out` are the places of fields that were refused, and that `spec` therefore lacks. A check
    that reads one of them says nothing.
    """
    lacking = Places(left_out)
    errors = list(_check_lists(spec))
    if not lacking.touch("task.name"):
        errors += _check_properties(spec)
        if errors and lacking.touch("task"):
            return []  # what is wrong may come from the field
    if errors:
        return errors  # so many values are not tried, and all other checks read these properties
    unknown = [section for section in ("model", "task") if lacking.touch(f"{section}.name")]
    misfits = (each for each in find_misfits(spec) if not Places([each.path]).touch(*unknown))
    errors += [*_check_task(spec, data_root, lacking), *misfits]
    conditions = [] if lacking.touch("space") else _check_conditions(spec)
    errors += conditions
    if not lacking.touch("scheduler.name"):
        errors += find_unread_settings(spec.scheduler)
    if not conditions and not lacking.touch("space", "search", "limits"):
        found = [*find_method_errors(spec), *_check_bounds(spec), *find_racing_errors(spec)]
        found += [*find_first_errors(spec), *find_unknown_fields(spec)]
        if spec.scheduler.name == "pbt" and not lacking.touch("training", "task"):
            found += find_population_errors(spec)
        told = {each.path for each in errors}
        errors += [
            each
            for each in found
            if each.path not in told and not lacking.touch(each.path.partition(".")[0])
        ]
    errors += _check_names(spec, lacking)
    errors += _check_extremes(spec, lacking, errors)
    if errors or lacking:
        return errors
    return list(find_empty_arms(spec)) or list(find_invalid_first(spec))


def _check_names(spec: ExperimentSpec, lacking: Places) -> Iterator[SpecError]:
    """Refuse an arm that nobody could name: EXPERIMENT/7 is a trial."""
    for index, arm in enumerate(spec.arms_):
        if spec.arms is not None and arm.label.isdecimal() and not lacking.touch("arms", arm=index):
            yield SpecError(
                f"arms.{index}.name",
                "the name of an arm is no number alone: EXPERIMENT/NUMBER means a trial",
                expected=f"a name with a letter, such as n{arm.label}",
                got=arm.label,
            )


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


def _check_properties(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Refuse a task of a package whose config has a property that nobody can use."""
    try:
        wrong = find_wrong_property(spec.task)
    except ValueError as error:
        with suppress(ValueError):
            spec.task.check()  # what this refuses is told later
            yield SpecError("task", str(error))
        return
    except (Exception, SystemExit) as error:
        wrong = say_foreign(error)
    if wrong is not None:
        yield SpecError("task", wrong)


def _check_task(
    spec: ExperimentSpec, data_root: Path | None, lacking: Places
) -> Iterator[SpecError]:
    task = spec.task
    if lacking.touch("task.name"):
        return
    if not lacking.touch("task"):
        try:
            task.check()
        except ValueError as error:
            yield SpecError("task", str(error))
            return
        yield from _check_metric_names(spec)
    if not (lacking.touch("task") and "corpus" in type(task).model_fields):  # it chooses a corpus
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


def _check_metric_names(spec: ExperimentSpec) -> Iterator[SpecError]:
    for metric in spec.task.metrics:
        if metric.name in COSTS:
            yield SpecError(
                "task",
                f"{spec.task.name} has a metric of the name '{metric.name}', which is a cost of "
                "training: give it another name in the task's class",
                expected=f"a name other than {', '.join(COSTS)}",
                got=metric.name,
            )
        elif not is_metric_name(metric.name):
            yield SpecError(
                "task",
                f"MLflow takes no metric of the name '{shorten(metric.name)}', which "
                f"{spec.task.name} has: give it another name in the task's class",
                expected=EXPECTED,
                got=shorten(metric.name),
            )


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


def _check_conditions(spec: ExperimentSpec) -> list[SpecError]:
    found: list[tuple[int, SpecError]] = []
    for index, arm in enumerate(spec.arms_):
        wrong = list(find_wrong_conditions(arm.space))
        for error in wrong:
            path = next(path for path in arm.space if error.path.startswith(f"{path}.when."))
            place = place_of(spec, index, path) + error.path[len(path) :]
            got = shorten(error.got)
            found.append(
                (index, ConditionError(place, error.message, error.expected, got, error.available))
            )
        if wrong:
            continue
        try:
            Space({arm.label: arm.space})
        except ConditionError as error:
            place = f"arms.{index}.space" if spec.arms is not None else "search.space"
            got = shorten(error.got)
            found.append((index, ConditionError(place, error.message, error.expected, got)))
    return _tell_once(spec, found)


def _tell_once(spec: ExperimentSpec, found: Iterable[tuple[int, SpecError]]) -> list[SpecError]:
    """Return errors of arms, each given by its number, without repetition.

    What is wrong in some arms, and stands where all arms share it, names them.
    """
    arms: dict[tuple[str, str], list[str]] = {}
    errors: dict[tuple[str, str], SpecError] = {}
    for index, error in found:
        key = error.path, error.message
        errors.setdefault(key, error)
        arms.setdefault(key, []).append(spec.arms_[index].label)
    for key, labels in arms.items():
        if len(labels) < len(spec.arms_) and not key[0].startswith("arms."):
            more = f" and {len(labels) - MOST_NAMED} more" if len(labels) > MOST_NAMED else ""
            e, words = errors[key], f"{key[1]} (in {', '.join(labels[:MOST_NAMED])}{more})"
            errors[key] = type(e)(e.path, words, e.expected, e.got, e.available)
    return list(errors.values())


def _check_bounds(spec: ExperimentSpec) -> Iterator[SpecError]:
    if spec.search.method != "grid":
        if spec.search.trials is None and spec.limits.trials is None:
            yield TrialLimitError(
                "search.trials",
                f"a {spec.search.method} search does not end by itself; say how many trials",
                expected="an integer of at least 1",
            )
        return
    endless = [
        (
            index,
            GridTooLargeError(
                place_of(spec, index, path),
                f"a grid needs single values, and '{path}' is a range without a step; list "
                "values, give a 'step', or search by 'random' or 'tpe' with 'search.trials'",
                expected="a finite list or range",
            ),
        )
        for index, arm in enumerate(spec.arms_)
        for path, axis in arm.space.items()
        if axis.size() is None
    ]
    yield from _tell_once(spec, endless)
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


def _check_extremes(
    spec: ExperimentSpec, lacking: Places, errors: Sequence[SpecError]
) -> list[SpecError]:
    """Return the rules about several fields that an arm breaks at each of its extreme points.

    A rule that reads what is wrong already says nothing, and values that were refused stand in no
    point. The corpus is of no account here.
    """
    wrong = Places(each.path for each in errors if not isinstance(each, CorpusError))
    refused = {each.path for each in errors}
    found: list[tuple[int, SpecError]] = []
    for index, arm in enumerate(spec.arms_):
        sections = {
            section
            for section, reads in READS.items()
            if not lacking.touch(*reads, arm=index) and not wrong.touch(*reads, arm=index)
        }
        space = _find_space(arm, index, lacking)
        if space is None:  # nobody knows what varies there
            sections -= {path.partition(".")[0] for path in arm.space}
        said: list[tuple[Point, dict[str, str]]] = []
        for corner in [Point(arm.label, {})] if space is None else space.corners(arm.label):
            point = corner
            if refused:
                left = (p for p in corner.params if place_of(spec, index, p) not in refused)
                point = Point(arm.label, {path: corner.params[path] for path in left})
            broken = spec.find_contradictions(point)
            said.append((point, {each: broken[each] for each in broken if each in sections}))
            if not said[-1][1]:
                if len(sections) == len(READS) and not lacking.touch("scheduler"):
                    found += [(index, each) for each in _check_rungs(spec, point)]
                break
        else:
            point, first = said[0]
            for section, words in first.items():
                differs = any(each.get(section) != words for _, each in said)
                found.append((index, _no_point(spec, index, section, words, point, differs)))
    return _tell_once(spec, found)


def _find_space(arm: Arm, index: int, lacking: Places) -> Space | None:
    """Return the space of a complete arm, None if a parameter was left out or a condition fails."""
    if lacking.touch("space", arm=index):
        return None
    try:
        return Space({arm.label: arm.space})
    except ConditionError:
        return None


def _check_rungs(spec: ExperimentSpec, point: Point) -> Iterator[SpecError]:
    if spec.scheduler.rung_every is None:
        return  # about ten
    configs = []
    with suppress(ConstraintError):
        configs.append(spec.trial(point))
    if any(path.startswith(("task.", "training.")) for path in point.params):
        extremes = list_extremes(spec, ("task", "training"))
        configs += [config for arm, config in extremes if arm == point.arm]
    if not configs:
        return
    config = max(configs, key=spec.rung_count)
    rungs = spec.rung_count(config)
    if rungs > MOST_RUNGS:
        yield SpecError(
            "scheduler.rung_every",
            f"a trial would report at {rungs:,} rungs; the limit is {MOST_RUNGS:,}",
            expected=f"at least {(config.training.steps or 0) // MOST_RUNGS + 1}",
            got=spec.scheduler.rung_every,
        )


def _no_point(
    spec: ExperimentSpec, index: int, section: str, words: str, point: Point, differs: bool
) -> SpecError:
    """Return the error about a rule that no point keeps; `differs`: its words depend on the point.

    It names the values that the rule reads.
    """
    reads = READS[section] if differs else (section,)
    got = {
        path: shorten(value)
        for path, value in point.params.items()
        if path.partition(".")[0] in reads
    }
    of_arm = spec.arms is not None and (
        section == "model" or (section == "optimizer" and spec.arms[index].optimizer is not None)
    )
    place = f"arms.{index}.{section}" if of_arm else section
    if not got:
        return InvalidPointError(place, words)
    shown = ", ".join(f"{path} = {value!r}" for path, value in list(got.items())[:8])
    return InvalidPointError(
        place, f"{words} (at {shown}, and no other extreme point of the search is valid)", got=got
    )

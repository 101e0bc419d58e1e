"""Which specs carry an experiment on that is over: the same settings, with more to do.

It may get more trials, more points, more arms, a longer budget, or more seeds of a race. Everything
else decides what its results mean, so a change of that is another experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eigensweep.search_spaces.dotted import flatten
from eigensweep.search_spaces.errors import SpecError, raise_errors, shorten
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.parameters import Choice, Parameter
from eigensweep.search_spaces.sections import Arm
from eigensweep.search_spaces.spec import ExperimentSpec

FREE = frozenset({"description", "priority", "search.first"})
BUDGET = frozenset({"training.steps", "training.epochs"})
COUNTS = frozenset({"search.trials", "limits.trials"})
RACE = frozenset({"racing.most", "racing.core_hours"})
"""How far a race goes. Where its end is later, it goes on; an earlier one undoes nothing."""


def describe_extension(old: ExperimentSpec, new: ExperimentSpec) -> str:
    """Return what there is to do more, in words; empty if nothing is.

    >>> spec = {"task": {"name": "copying", "delay": 9}, "model": {"name": "lstm"}}
    >>> old = ExperimentSpec.model_validate({**spec, "training": {"steps": 100}})
    >>> new = ExperimentSpec.model_validate({**spec, "training": {"steps": 300}})
    >>> describe_extension(old, new)
    'training.steps from 100 to 300'

    Raises:
        SpecError: if it would be another experiment: a setting differs, or something is less.
    """
    if new.scheduler.name == "pbt":
        raise SpecError(
            "scheduler.name",
            "the trials of pbt train as one population, which cannot be extended; "
            "`eigensweep fork` posts it again, changed",
        )
    changes = dict(_find_changes(flatten(_rest(old)), flatten(_rest(new))))
    errors = [
        _differs(path, before, after)
        for path, (before, after) in changes.items()
        if path not in FREE | BUDGET | COUNTS | RACE
        and path.partition(".")[0] not in ("limits", "tags")
    ]
    words = list(dict.fromkeys(_compare_arms(old, new, errors)))
    errors += [*_check_budget(old, new), *_check_count(old, new), *_check_first(old, new)]
    raise_errors(errors)
    added = len(new.search.first) - len(old.search.first)
    if added:
        words.append(f"{say_count(added, 'point')} to be tried first")
    more = (BUDGET if read_steps(old) is not None else frozenset()) | COUNTS | RACE
    told = (path for path in changes if path in more or path.startswith("limits."))
    return ", ".join(
        [f"{path} from {_name(changes[path][0])} to {_name(changes[path][1])}" for path in told]
        + words
    )


def is_longer(old: ExperimentSpec, new: ExperimentSpec) -> bool:
    """Return whether trials have a longer budget."""
    before, after = read_steps(old), read_steps(new)
    return before is not None and after is not None and after > before


def _check_budget(old: ExperimentSpec, new: ExperimentSpec) -> Iterator[SpecError]:
    before, after = read_steps(old), read_steps(new)
    if before is not None and after is not None and after < before:
        yield SpecError(
            "training",
            f"an extension has no shorter budget: {say_count(after, 'step')} after {before:,}",
            expected=f"at least {say_count(before, 'step')}",
            got=after,
        )
    if is_longer(old, new) and new.scheduler.name != "none":
        yield SpecError(
            "training",
            f"the scheduler {new.scheduler.name} has compared the trials along the old budget; "
            "`eigensweep fork` posts it again, changed: it goes on from the same checkpoints",
        )
    falling = [arm.label for arm in new.arms_ if _falls_to_its_end(arm)]
    if is_longer(old, new) and falling:
        yield SpecError(
            "training",
            f"with schedule cosine the learning rates of arm '{falling[0]}' have reached their "
            "lowest at the end of the old budget; `eigensweep fork` posts it again, changed, and "
            "trains anew",
        )


def _falls_to_its_end(arm: Arm) -> bool:
    """Return whether the learning rates of trials of an arm may depend on the budget."""
    axis, path = arm.space.get("optimizer.schedule"), "optimizer.schedule_every"
    assert arm.optimizer is not None
    fixed = arm.optimizer.schedule == "cosine"
    falls = fixed if axis is None else axis.position("cosine") is not None
    return falls and arm.optimizer.schedule_every is None and path not in arm.space


def read_steps(spec: ExperimentSpec) -> int | None:
    """Return the budget in steps, None where the search varies it."""
    if all(BUDGET & arm.space.keys() for arm in spec.arms_):
        return None
    try:
        return spec.training.resolve(spec.task).steps
    except ValueError:
        return None


def _rest(spec: ExperimentSpec) -> dict[str, Any]:
    content = spec.model_dump(mode="json", exclude={"model", "optimizer", "arms"})
    del content["search"]["space"]
    return content


def _find_changes(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for path in dict.fromkeys((*old, *new)):
        if old.get(path) != new.get(path):
            yield path, (old.get(path), new.get(path))


def _compare_arms(
    old: ExperimentSpec, new: ExperimentSpec, errors: list[SpecError]
) -> Iterator[str]:
    """Yield what each arm has more, in words; add to `errors` what differs, once for all arms."""
    arms = {arm.label: arm for arm in new.arms_}
    told: set[tuple[str, str]] = set()
    for before in old.arms_:
        after = arms.pop(before.label, None)
        if after is None:
            error = SpecError(
                "arms",
                f"an extension keeps every arm; '{before.label}' is missing",
                available=[arm.label for arm in old.arms_],
            )
            errors.append(error)
            continue
        place, found = f"arms.{before.label}.", list[SpecError]()
        for path, (was, now) in _find_changes(_settings(before), _settings(after)):
            found.append(_differs(f"{place}{path}", was, now))
        yield from _compare_axes(before, after, found)
        errors += [e for e in found if (e.path.removeprefix(place), e.message) not in told]
        told |= {(e.path.removeprefix(place), e.message) for e in found}
    for label in arms:
        yield f"arm {label} new"


def _settings(arm: Arm) -> dict[str, Any]:
    return flatten(arm.model_dump(mode="json", include={"model", "optimizer"}))


def _compare_axes(old: Arm, new: Arm, errors: list[SpecError]) -> Iterator[str]:
    for path in dict.fromkeys((*old.space, *new.space)):
        before, after = old.space.get(path), new.space.get(path)
        if before == after:
            continue
        place = f"arms.{old.label}.space.{path}"
        if before is None or after is None:
            words = (
                "an extension varies the same fields: the trials so far have no value for others"
            )
            errors.append(SpecError(place, words, available=list(old.space)))
        elif not _holds(after, before):
            errors.append(
                SpecError(
                    place,
                    "an extension keeps every value that could be tried before",
                    expected=str(shorten(before.model_dump(mode="json"))),
                    got=shorten(after.model_dump(mode="json")),
                )
            )
        else:
            yield f"{path} wider"


def _holds(wider: Parameter, narrow: Parameter) -> bool:
    """Return whether a parameter takes every value of another one, under the same conditions."""
    if wider.when != narrow.when:
        return False
    if isinstance(narrow, Choice):
        if isinstance(wider, Choice) or wider.size() is not None:
            return all(wider.position(value) is not None for value in narrow.values)
        return False
    if type(wider) is not type(narrow) or wider.log != narrow.log or wider.step != narrow.step:
        return False
    if narrow.size() is not None:
        return all(wider.position(value) is not None for value in narrow.ends())
    return wider.low <= narrow.low and narrow.high <= wider.high


def _check_count(old: ExperimentSpec, new: ExperimentSpec) -> Iterator[SpecError]:
    before, after = old.trial_count(), new.trial_count()
    if after is not None and (before is None or after < before):
        was = "without a limit" if before is None else f"of {say_count(before, 'trial')}"
        yield SpecError(
            "limits.trials" if new.limits.trials == after else "search.trials",
            f"an extension has no fewer trials: {after} after a search {was}",
            expected=None if before is None else f"at least {before}",
            got=after,
        )


def _check_first(old: ExperimentSpec, new: ExperimentSpec) -> Iterator[SpecError]:
    """Yield why points that are to be tried next would not be."""
    before, after, last = old.search.first, new.search.first, new.trial_count()
    added = len(after) - len(before)
    if after[: len(before)] != before:
        yield SpecError(
            "search.first",
            "an extension keeps the points that came first; further ones follow them",
            expected=f"the {say_count(len(before), 'point')} from before, and then others",
        )
    elif added and last is not None and last < (needed := (old.trial_count() or 0) + added):
        yield SpecError(
            "search.first",
            f"{say_count(added, 'point')} more can only be tried in as many trials more",
            expected=f"at least {say_count(needed, 'trial')}",
            got=last,
        )


def _differs(path: str, before: Any, after: Any) -> SpecError:
    return SpecError(
        path,
        f"an extension keeps this ({_name(before)}), since results depend on it; "
        "`eigensweep fork` posts it again, changed",
        expected=_name(before),
        got=shorten(after),
    )


def _name(value: Any) -> str:
    return "none" if value is None else str(shorten(value))

"""Everything that is wrong with a spec, as a list of plain objects for the API and the terminal.

Pydantic's errors are translated: the path as a person would write it, what was expected, what
came, and which names exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, get_args

from pydantic import BaseModel, ValidationError

from eigensweep.common.registry import Registry
from eigensweep.models import MODELS
from eigensweep.search_spaces.errors import (
    MOST_TOLD,
    SeveralErrors,
    SpecError,
    did_you_mean,
    end_of_sentence,
    say_more,
    shorten,
)
from eigensweep.search_spaces.sections import SEARCHED
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.tasks import TASKS

MOST_READ = 200
"""Errors of pydantic that are put into words; a text of a million wrong values has no more."""
PLAIN_WORDS = {
    **dict.fromkeys(("model_type", "dict_type", "model_attributes_type"), "should be an object"),
    **dict.fromkeys(("tuple_type", "list_type"), "should be a list"),
    "string_unicode": "should be text of valid Unicode",
}
"""Messages in words of JSON, in place of Pydantic's."""
ONE_VALUE = "float_type", "int_type", "bool_type", "string_type"
"""Errors of pydantic where a number, a truth value or a text was expected."""
Location = Sequence[int | str]


class Problem(TypedDict):
    """One thing that is wrong; `got` is plain JSON."""

    path: str
    message: str
    expected: str | None
    got: Any
    available: list[str] | None


def list_problems(
    error: ValidationError | SpecError, root: type[BaseModel] = ExperimentSpec
) -> list[Problem]:
    """Return each thing that is wrong, once, in the order of the spec.

    `root` is the class that was validated when `error` came.
    """
    found: list[Problem] = []
    for problem in _each_problem(error, root):
        if problem not in found:
            found.append(problem)
    return found


def shorten_list(problems: list[Problem]) -> list[Problem]:
    """Return the first `MOST_TOLD` problems, and then a last one that says how many more there are.

    >>> problem = Problem(path="a", message="no", expected=None, got=None, available=None)
    >>> shorten_list([problem] * 23)[-1]["message"]
    'and 3 more; these come first'
    """
    if len(problems) <= MOST_TOLD:
        return problems
    words = say_more(len(problems) - MOST_TOLD)
    last = Problem(path="", message=words, expected=None, got=None, available=None)
    return [*problems[:MOST_TOLD], last]


def _each_problem(error: ValidationError | SpecError, root: type[BaseModel]) -> Iterator[Problem]:
    if isinstance(error, SeveralErrors):
        for one in error.errors:
            yield from _each_problem(one, root)
    elif isinstance(error, SpecError):
        yield Problem(
            path=error.path,
            message=error.message,
            expected=error.expected,
            got=shorten(error.got),
            available=error.available,
        )
    else:
        for each in error.errors(include_url=False)[:MOST_READ]:
            yield _problem(each, root)


def _problem(error: Mapping[str, Any], root: type[BaseModel]) -> Problem:
    loc: Location = error["loc"]
    path, owners = _walk(loc, root)
    kind, got, context = error["type"], error.get("input"), error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_field(path, str(loc[-1]), owners, root)
    if kind in ("union_tag_invalid", "union_tag_not_found") and path.split(".")[-1] in _REGISTRIES:
        return _unknown_name(path, got, kind == "union_tag_not_found")
    if kind == "union_tag_invalid" or (kind == "model_type" and "space" in loc[:-1]):
        message = "a parameter is a list of values, or {low, high} of type 'real' or 'integer'"
        return Problem(
            path=path, message=message, expected=message, got=shorten(got), available=None
        )
    message = str(context["error"]) if "error" in context else end_of_sentence(str(error["msg"]))
    message = PLAIN_WORDS.get(kind, message)
    if kind == "missing":
        known = _fields(owners)
        return Problem(
            path=path,
            message=f"'{loc[-1]}' is missing",
            expected=f"a value for '{loc[-1]}'",
            got=None,
            available=known or None,
        )
    where = isinstance(got, Mapping | BaseModel)
    *_, last = parts = path.split(".")
    named = ".".join(parts[-2:]) if last.isdecimal() else last  # an item says whose it is
    field = f"'{named}' " if message.startswith("should ") else ""
    hint = _say_where_to_search(path, error, root)
    return Problem(
        path=path,
        message=field + (message if where else f"{message}; got {shorten(got)!r}") + hint,
        expected=message,
        got=None if where else shorten(got),
        available=list(map(str, _literals(error))) or None,
    )


def _say_where_to_search(path: str, error: Mapping[str, Any], root: type[BaseModel]) -> str:
    """Return where the values of a field belong, if several were given in place of one."""
    name = re.sub(r"^arms\.[^.]+\.", "", path)
    are_several = isinstance(error.get("input"), Mapping | list) and error["type"] in ONE_VALUE
    if root is not ExperimentSpec or not are_several or name.split(".")[0] not in SEARCHED:
        return ""
    return f"; to search it, give a list of values or {{low, high}} as '{name}' in 'search.space'"


def _literals(error: Mapping[str, Any]) -> Iterator[str]:
    if error["type"] == "literal_error":
        yield from str(error["ctx"]["expected"]).replace(" or ", ", ").replace("'", "").split(", ")


def _unknown_field(
    path: str, field: str, owners: list[type[BaseModel]], root: type[BaseModel]
) -> Problem:
    known = _fields(owners)
    whose = ", ".join(dict.fromkeys(_name_of(owner) for owner in owners)) or "this object"
    elsewhere = _find_elsewhere(path, field, root)
    hint = f"; here it is '{elsewhere}'" if elsewhere else did_you_mean(field, known)
    if root is not ExperimentSpec and path in ExperimentSpec.model_fields:
        hint = "; a spec of a search has it, which `Client.submit` takes"
    return Problem(
        path=path,
        message=f"{whose} has no '{shorten(field)}'; it has {', '.join(map(repr, known))}{hint}",
        expected=f"a field of {whose}",
        got=shorten(field),
        available=known,
    )


OF_OTHER_TOOLS = {
    "metric": "objective.metric",
    "objective.name": "objective.metric",
    "objective.objectiveMetricName": "objective.metric",
    "parameters": "search.space",
    "param_space": "search.space",
    "hyperparameters": "search.space",
    "search.parameters": "search.space",
    "num_samples": "search.trials",
    "n_trials": "search.trials",
    "maxTrialCount": "search.trials",
    "run_cap": "search.trials",
    "search.num_samples": "search.trials",
    "search.n_trials": "search.trials",
    "algorithm": "search.method",
    "sampler": "search.method",
    "search_alg": "search.method",
    "early_terminate": "scheduler",
    "pruner": "scheduler",
    "grace_period": "scheduler.min_steps",
    "scheduler.grace_period": "scheduler.min_steps",
    "points_to_evaluate": "search.first",
    "search.points_to_evaluate": "search.first",
    "search_alg.points_to_evaluate": "search.first",
    "max_concurrent_trials": "limits.concurrency",
    "parallelTrialCount": "limits.concurrency",
    "n_jobs": "limits.concurrency",
    "seeds": "replicates",
}
"""What W&B, Ray Tune, Optuna and Katib call a setting, and where a spec has it."""


def _find_elsewhere(path: str, field: str, root: type[BaseModel]) -> str | None:
    """Return the path at which a spec has a field that stands in the wrong place, if it has one."""
    known = root.model_fields
    meant = OF_OTHER_TOOLS.get(path)
    if meant is not None and meant.split(".")[0] in known:
        return meant
    words = path.split(".")
    here = words[2:3] if words[0] == "arms" else words[:1]
    for section, info in known.items():
        if "space" in words or section in ("arms", "published", *here):
            continue
        if any(field in owner.model_fields for owner in _classes(info.annotation)):
            return f"{section}.{field}"
    return None


def _fields(owners: list[type[BaseModel]]) -> list[str]:
    """Return the fields as a person writes them."""
    return [f.alias or name for owner in owners for name, f in owner.model_fields.items()]


def _name_of(owner: type[BaseModel]) -> str:
    """Return what messages call a config: its name, or its section of the spec.

    >>> from eigensweep.search_spaces.trial import OptimizerConfig
    >>> _name_of(OptimizerConfig), _name_of(MODELS["scornn"].Config), _name_of(ExperimentSpec)
    ('optimizer', 'scornn', 'a spec')
    """
    name = owner.model_fields.get("name")
    if name is not None and any(
        issubclass(owner, cls.Config)
        for registry in _REGISTRIES.values()
        for cls in registry.values()
    ):
        return str(name.default)
    if owner is ExperimentSpec:
        return "a spec"
    word = owner.__name__.removesuffix("Config").lower()
    return {"arm": "an arm", "singletrial": "one configuration"}.get(word, word)


def _unknown_name(path: str, got: Any, absent: bool) -> Problem:
    kind = path.split(".")[-1]
    registry = _REGISTRIES[kind]
    known = sorted(registry)
    name = got.get("name") if isinstance(got, Mapping) else got
    if absent:
        message = f"a {kind} is an object with a 'name'; there are {', '.join(known)}"
    else:
        reason = registry.explain_absence(str(name))
        message = (
            f"there is no {kind} '{shorten(name)}'{f' ({reason})' if reason else ''}; "
            f"there are {', '.join(known)}{did_you_mean(str(name), known)}"
        )
        if not reason:
            message += "" if message.endswith("?") else "."
            message += (
                f" A {kind} of your own is found once its package is installed beside the service "
                "and the service has started again (docs/how-to/models-and-tasks.md)"
            )
    return Problem(
        path=f"{path}.name",
        message=message,
        expected=f"the name of a {kind}",
        got=shorten(name),
        available=known,
    )


_REGISTRIES: Mapping[str, Registry[Any]] = {"model": MODELS, "task": TASKS}
_TAGS = {"choice", "real", "integer"}


def _walk(loc: Location, root: type[BaseModel]) -> tuple[str, list[type[BaseModel]]]:
    """Return the path without the names of union members, and the classes of the last object."""
    shown_path: list[str] = []
    owners: list[type[BaseModel]] = [root]
    below: Any = root
    previous: int | str | None = None
    for place, key in enumerate(loc):
        last = place == len(loc) - 1
        if previous in _REGISTRIES and key in _REGISTRIES[str(previous)] and not last:
            below = _REGISTRIES[str(previous)][str(key)].Config
            previous = key
            continue
        if previous in _REGISTRIES and key in _REGISTRIES[str(previous)]:
            continue
        if key in _TAGS and shown_path and "space" in shown_path[:-1]:
            below = next(c for c in _classes(below) if c.__name__.lower() == key)
            previous = key
            continue
        owners = _classes(below) or owners
        shown_path.append(str(shorten(key)))
        if isinstance(key, str) and previous != "space":  # a parameter may be called as a field
            fields = [owner.model_fields[key] for owner in owners if key in owner.model_fields]
            below = fields[0].annotation if fields else below
        previous = key
    return ".".join(shown_path), owners


def _classes(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in get_args(annotation) for found in _classes(part)]

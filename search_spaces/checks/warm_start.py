"""Which trials of earlier experiments tell a search something: those of the same training.

A sampler compares values, so an earlier trial counts only where this experiment would train the
very same configuration at some point of its space, to the same budget. Seeds may differ. Trials
that were stopped early count where the method learns from such trials.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eigensweep.search_spaces.config_fields import read_field
from eigensweep.search_spaces.errors import InvalidPointError
from eigensweep.search_spaces.parameters import Parameter
from eigensweep.search_spaces.sections import JOINT
from eigensweep.search_spaces.space import Point, Scalar, Space
from eigensweep.search_spaces.spec import ExperimentSpec

OTHER_TASK = "learned another task"
OTHER_METRIC = "were ranked by another metric"
OTHER_MODEL = "trained a model that no arm has"
OTHER_BUDGET = "trained another number of steps"
OTHER_CODE = "were trained by other code of the package that brings the task or the model"
STOPPED = "were stopped early, from which only tpe with one objective learns"
OUTSIDE = "lie outside of the space, or differ in what it does not vary"
MOST_POINTS = 256
"""Points that are tried for one trial; each costs about a millisecond."""


def find_point(
    spec: ExperimentSpec,
    space: Space,
    params: Mapping[str, Scalar],
    config: Mapping[str, Any],
    hash: str,
    *,
    pruned: bool,
) -> Point | str:
    """Return the point of a spec and its space at which an earlier trial lies, or why none is.

    The earlier trial has the resolved `config`, its content `hash`, and was at `params` of its own
    space. `pruned` says that a scheduler stopped it.
    """
    if pruned and (spec.search.method in JOINT or spec.objective.against):
        return STOPPED
    if config["task"]["name"] != spec.task.name:
        return OTHER_TASK
    if config["objective"]["metric"] != spec.objective_metric.name:
        return OTHER_METRIC
    arms = [arm for arm in spec.arms_ if arm.model.name == config["model"]["name"]]
    why = OUTSIDE if arms else OTHER_MODEL
    for arm in arms:
        for point in _read_points(arm.label, space.axes(arm.label), params, config):
            try:
                here = spec.trial(point)
            except InvalidPointError:
                continue
            if here.content_hash() != hash:
                if here.model_copy(update={"code": config.get("code")}).content_hash() == hash:
                    why = OTHER_CODE
                continue
            if here.training.steps == config["training"]["steps"]:
                return point
            why = OTHER_BUDGET
    return why


def _read_points(
    arm: str,
    axes: Mapping[str, Parameter],
    params: Mapping[str, Scalar],
    config: Mapping[str, Any],
) -> Iterator[Point]:
    """Yield the points of an arm at which a configuration may lie.

    Mostly that is one. A resolved configuration does not have the share, budget or epochs that it
    was made from. So where the search varies such a field, each of its values is tried.
    """
    found: list[dict[str, Scalar]] = [{}]
    for path, axis in axes.items():
        found = [
            {**values, path: value} if active else values
            for values in found
            for active in (axis.is_active(values),)
            for value in (_read_values(path, axis, params, config) if active else (None,))
        ][:MOST_POINTS]
    yield from (Point(arm, values) for values in found)


def _read_values(
    path: str, axis: Parameter, params: Mapping[str, Scalar], config: Mapping[str, Any]
) -> list[Scalar]:
    """Return the values of an axis that a configuration may have: one, none or all of them."""
    section, _, field = path.partition(".")
    try:
        value = params[path] if path in params else read_field(config[section], field)
    except LookupError:
        return []
    try:
        return [axis.match(value)]
    except ValueError:
        size = axis.size()
        if value is not None or size is None or size > MOST_POINTS:
            return []
        return [axis.value(index) for index in range(size)]

"""Which trials of earlier experiments tell a search something: those of the same training.

A sampler compares values, so an earlier trial counts only where this experiment would train the
very same configuration at some point of its space, to the same budget. Seeds may differ. Trials
that were stopped early count where the method learns from such trials.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        point = _read_point(arm.label, space.axes(arm.label), params, config)
        if point is None:
            continue
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


def _read_point(
    arm: str,
    axes: Mapping[str, Parameter],
    params: Mapping[str, Scalar],
    config: Mapping[str, Any],
) -> Point | None:
    """Return the values that an arm's parameters have in a configuration, if it takes them."""
    found: dict[str, Scalar] = {}
    for path, axis in axes.items():
        if not axis.is_active(found):
            continue
        section, _, field = path.partition(".")
        try:
            value = params[path] if path in params else read_field(config[section], field)
            found[path] = axis.match(value)
        except (LookupError, ValueError):
            return None
    return Point(arm, found)

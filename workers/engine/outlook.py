"""What is known of lanes before anything trains: which arms of a spec cannot share them."""

from __future__ import annotations

from eigensweep.search_spaces.errors import InvalidPointError
from eigensweep.search_spaces.space import Space
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.workers.engine.group import explain_alone


def explain_arms_alone(spec: ExperimentSpec) -> dict[str, str]:
    """Return the arms with trials that cannot share lanes, each with the first reason.

    Of each arm the extreme points are looked at.
    """
    space = spec.space()
    found = {arm: _explain_arm(spec, space, arm) for arm in space.arms}
    return {arm: why for arm, why in found.items() if why is not None}


def _explain_arm(spec: ExperimentSpec, space: Space, arm: str) -> str | None:
    for point in space.corners(arm):
        try:
            why = explain_alone(spec.trial(point))
        except InvalidPointError:
            continue
        if why is not None:
            return why
    return None

"""What is known of lanes before anything trains: which arms of a spec cannot share them."""

from __future__ import annotations

from eigensweep.search_spaces.checks.memory import list_extremes
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.training.lanes.stacked.group import explain_alone


def explain_arms_alone(spec: ExperimentSpec) -> dict[str, str]:
    """Return the arms with trials that cannot share lanes, each with the first reason.

    Of each arm the extreme points are looked at.
    """
    found: dict[str, str] = {}
    for arm, config in list_extremes(spec):
        why = None if arm in found else explain_alone(config)
        if why is not None:
            found[arm] = why
    return found

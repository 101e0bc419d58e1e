"""How trials share an engine, in numbers: how many are members, and what each asks Ray for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from eigensweep.protocol.messages import EngineNeed
from eigensweep.search_spaces.lanes import count_members

if TYPE_CHECKING:
    from eigensweep.search_spaces.sections import ResourcesConfig

NO_LABELS: Mapping[str, str] = {}

UNITS = 10_000
"""Ray counts a resource in whole ten-thousandths."""

ACCELERATOR_LABEL = "ray.io/accelerator-type"
"""Ray's own label of the kind of GPU that a node has."""


def to_units(amount: float) -> int:
    """Return an amount of a resource in Ray's units, rounded down, and at least one.

    >>> to_units(0.1), to_units(1 / 3), to_units(0.0001)
    (1000, 3333, 1)
    """
    exact = Fraction(repr(float(amount)))  # the number as it is written: 0.1 is a tenth
    return max(1, int(exact * UNITS))


def count_fitting(room: float, amount: float) -> int:
    """Return how many such amounts a node's room of a resource holds.

    >>> count_fitting(1, 0.2), count_fitting(1, 0.1), count_fitting(1, 1 / 3)
    (5, 10, 3)
    """
    return round(room * UNITS) // to_units(amount)


@dataclass(frozen=True)
class Share:
    """What one trial asks Ray for, and the engine that it shares with others, if any."""

    resources: dict[str, float]
    """What one trial occupies, in Ray's words: `CPU`, and perhaps `GPU` and `memory` in bytes."""
    engine: EngineNeed | None = None
    """None: the trial has its process to itself."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What a node must have, in Ray's words."""

    @property
    def trials(self) -> int:
        """How many trials share an engine; 1 without one."""
        return 1 if self.engine is None else self.engine.trials

    def count_slots(self, node: Mapping[str, float], labels: Mapping[str, str] = NO_LABELS) -> int:
        """Return how many trials a node with these resources and labels holds at once."""
        if any(labels.get(key) != value for key, value in self.labels.items()):
            return 0
        if self.engine is None:
            return _count_whole(node, self.resources)
        return self.trials * _count_whole(node, self.engine.resources)


@dataclass(frozen=True)
class Capacity:
    """What the nodes of now hold of the trials of a spec."""

    trials: int | None
    """How many run at once; None where `lanes: auto` has to be measured first."""
    problem: str | None
    """Why there is no room for a single one, None if there is."""
    may_change: bool
    """Whether nodes come and go, so that a problem may go, too."""


def spread_lanes(lanes: int, replicates: int, members: int) -> int:
    """Return how many lanes an engine gets that will have so many trials at most.

    >>> spread_lanes(32, 1, members=8), spread_lanes(4, 2, members=8)
    (8, 4)
    """
    return min(lanes, max(1, members * replicates))


def share_of(
    resources: ResourcesConfig, replicates: int, lanes: int | None, most: int | None = None
) -> Share:
    """Return what one trial asks for; `lanes` is the number where the spec says `auto`.

    `most` is how many trials an engine takes at most; None: those that train, and spare
    ones. Ray fills one GPU before it begins with the next.
    """
    whole = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory or 0}
    whole = {kind: amount for kind, amount in whole.items() if amount}
    labels = node_labels(resources)
    if lanes is None:
        alone = {kind: to_units(amount) / UNITS for kind, amount in whole.items()}
        return Share(alone, labels=labels)
    trials = count_members(lanes, replicates)
    trials = trials if most is None else max(1, min(trials, most))
    part = {kind: max(1, to_units(amount) // trials) / UNITS for kind, amount in whole.items()}
    if "memory" in part:
        part["memory"] = float(int(part["memory"]))  # Ray takes whole bytes
    need = EngineNeed(lanes, trials, resources.cpus, resources.gpus, resources.memory or 0)
    return Share(part, need, labels)


def node_labels(resources: ResourcesConfig) -> dict[str, str]:
    """Return what a node must have, in Ray's words."""
    if resources.accelerator_type is None:
        return dict(resources.labels)
    return {**resources.labels, ACCELERATOR_LABEL: resources.accelerator_type}


def _count_whole(node: Mapping[str, float], need: Mapping[str, float]) -> int:
    return min(count_fitting(node.get(kind, 0), amount) for kind, amount in need.items())

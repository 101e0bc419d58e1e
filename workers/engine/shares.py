"""How trials share an engine, in numbers: how many are aboard, and what each asks Ray for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.shared.messages import EngineNeed

UNITS = 10_000
"""Ray counts a resource in whole ten-thousandths."""

SPARE_SHARE = 8
"""For so many lanes one more trial waits aboard, so that a lane that becomes free is refilled."""


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


def count_aboard(lanes: int, replicates: int) -> int:
    """Return how many trials share an engine: those that train, and the spare ones that wait.

    Each replicate of a trial takes a lane.

    >>> count_aboard(32, 1), count_aboard(4, 1), count_aboard(8, 3), count_aboard(2, 5)
    (36, 5, 3, 2)
    """
    training = max(1, lanes // replicates)
    return training + -(-training // SPARE_SHARE)


@dataclass(frozen=True)
class Share:
    """What one trial asks Ray for, and the engine that it shares with others, if any."""

    resources: dict[str, float]
    """What one trial occupies, in Ray's words: `CPU`, and perhaps `GPU`."""
    engine: EngineNeed | None = None
    """None: the trial has its process to itself."""

    @property
    def trials(self) -> int:
        """How many trials share an engine; 1 without one."""
        return 1 if self.engine is None else self.engine.trials

    def count_slots(self, node: dict[str, float]) -> int:
        """Return how many trials a node with these resources holds at once."""
        if self.engine is None:
            return _count_whole(node, self.resources)
        return self.trials * _count_whole(node, self.engine.resources)


@dataclass(frozen=True)
class Room:
    """The room that the nodes of now have for the trials of a spec."""

    trials: int | None
    """How many run at once; None where `lanes: auto` has to be measured first."""
    problem: str | None
    """Why there is no room for a single one, None if there is."""
    may_change: bool
    """Whether nodes come and go, so that a problem may go, too."""


def share_of(resources: ResourcesConfig, replicates: int, lanes: int | None) -> Share:
    """Return what one trial asks for; `lanes` is the number where the spec says `auto`."""
    whole = {"CPU": resources.cpus, **({"GPU": resources.gpus} if resources.gpus else {})}
    if lanes is None:
        return Share({kind: to_units(amount) / UNITS for kind, amount in whole.items()})
    trials = count_aboard(lanes, replicates)
    part = {kind: max(1, to_units(amount) // trials) / UNITS for kind, amount in whole.items()}
    return Share(part, EngineNeed(lanes, trials, resources.cpus, resources.gpus))


def _count_whole(node: dict[str, float], need: dict[str, float]) -> int:
    return min(count_fitting(node.get(kind, 0), amount) for kind, amount in need.items())

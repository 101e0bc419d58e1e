"""The members of an engine: its trials, the lanes of their replicates, and the groups of lanes."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field

from eigensweep.protocol.messages import Order, Report
from eigensweep.training.attempt import Attempt, Replicate
from eigensweep.training.lanes.engine.turns import SideBySide

ALONE = "alone"
"""Name of the group of those that cannot share: they take turns."""


@dataclass(eq=False)
class MemberTrial:
    """An order that an engine works off."""

    order: Order
    arrival: int
    predecessor: MemberTrial | None = None
    """An earlier attempt that must have gone before this one is picked up from the store."""
    attempt: Attempt | None = None
    lanes: list[MemberLane] = field(default_factory=list)
    lanes_of_group: int = 1
    shape: str = ""
    """Trials of one shape that ask for equally many lanes share a group, and this name."""
    alone: str | None = None
    """Why it cannot share."""
    probe: Probe | None = None
    """The search for who made its group fail."""
    probed_until: int = 0
    reports: deque[Report] = field(default_factory=deque)
    """To be given out."""
    held: deque[tuple[Report, list[Future[None]]]] = field(default_factory=deque)
    """To be given out when these commits are written."""
    error: BaseException | None = None
    """What callers are told instead of a report."""
    drop: str | None = None
    """Why it goes: `left`, `moved` or `superseded`."""
    is_opening: bool = False
    is_over: bool = False
    """There is nothing more to train."""
    has_failed: bool = False
    is_gone: bool = False
    """It has no lane, and nothing of it is left to be written."""

    @property
    def subject(self) -> tuple[str, int]:
        """Experiment and number, for log lines."""
        return self.order.experiment, self.order.number


@dataclass(eq=False)
class MemberLane:
    """A replicate, in a lane of a group or waiting for one."""

    trial: MemberTrial
    replicate: Replicate
    group: ScheduledGroup | None = None
    writing: Future[None] | None = None
    """The last of its commits that is being written."""
    is_lost: bool = False
    """Its tensors cannot be trusted: what it has in the store stands."""

    @property
    def is_needed(self) -> bool:
        """Whether its trial's next rung waits for it."""
        assert self.trial.attempt is not None
        return not self.replicate.has_come_to(self.trial.attempt.rung)

    @property
    def is_writing(self) -> bool:
        return self.writing is not None and not self.writing.done()

    def wait(self) -> None:
        """Wait until its last commit is written, or has failed."""
        if self.writing is not None:
            self.writing.exception()


@dataclass(eq=False)
class ScheduledGroup:
    """A group of lanes, who has one, and how much of the device it has had."""

    name: str
    trainer: SideBySide
    occupied: list[MemberLane] = field(default_factory=list)
    used: float = 0.0
    """Seconds of the device by occupied lane: the group with the least trains next."""
    has_trained: bool = False


@dataclass(eq=False)
class Probe:
    """The search for the trial that makes a group fail."""

    error: Exception
    trials: list[MemberTrial] = field(default_factory=list)
    """Those that have not come far enough alone."""
    is_explained: bool = False
    """Whether one of them has failed alone."""

"""How often the attempts of each trial were lost, and which trials rest before they try again.

A loss of the trial's own process counts against the trial. A loss by engine, disk, store, memory,
or with its node does not, or not soon: nobody knows which trial is to blame.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

from eigensweep.protocol.messages import LostBy, Notice, Place
from eigensweep.search_spaces.labels import say_count
from eigensweep.workers.driver.nodes.cordons import NOWHERE, grow

MOST_ENGINES = 2
"""Engines that may die under a trial between two of its reports before it trains alone."""

LONGEST_REST = 60.0
"""The longest rest in seconds before a trial tries a failed disk or memory again."""

MOST_SHORTAGES = 30
"""How often a trial may be lost between two of its reports because its node has no memory left, or
goes itself, or the process goes that all of a node are forked from."""

MOST_DEVICES = 2
"""Devices that a trial may lose between two of its reports before it fails: its own kernels may
have ended them."""


class Losses:
    """The losses of one experiment's trials, by number, and the trials that rest.

    When a trial reports, all its losses but those of its own process are forgotten.
    """

    def __init__(self, retries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._retries, self._clock = retries, clock
        self._counts: defaultdict[LostBy, Counter[int]] = defaultdict(Counter)
        self._devices: defaultdict[int, list[str]] = defaultdict(list)
        """The nodes on which devices were lost under each trial."""
        self.rests: dict[int, float] = {}
        """The time on the clock at which each resting trial is tried again."""
        self._disk_fault = ""
        """Why trials wait for disk or store, as the first one said."""

    def add(self, number: int, by: LostBy, place: Place | None) -> None:
        """Count a loss; a device lost by an engine counts as a loss by the engine."""
        if by == "device" and place is not None and place.lanes is not None:
            by = "engine"
        if by == "device":
            node = None if place is None else place.node_id
            self._devices[number].append(node or NOWHERE)
        else:
            self._counts[by][number] += 1

    def forget(self, number: int) -> None:
        """Note that a trial has reported."""
        for by in ("engine", "disk", "memory", "departure"):
            self._counts[by].pop(number, None)
        self._devices.pop(number, None)

    def forgive(self, number: int) -> None:
        """Forget a reopened trial's losses: it may lose its process as often as a new one."""
        self._counts["process"].pop(number, None)

    def has_lost_engines(self, number: int) -> bool:
        """Return whether engines died so often under a trial that it should train alone."""
        return self._counts["engine"][number] >= MOST_ENGINES

    def list_device_nodes(self, number: int) -> list[str]:
        """Return the nodes on which a trial has lost a device since it last reported."""
        return [*self._devices.get(number, ())]

    def judge(self, number: int, by: LostBy, cause: str) -> str | None:
        """Return why a trial fails after its last loss; None: it may go on."""
        times = self._counts[by][number]
        if by in ("process", "memory", "departure"):
            most = self._retries if by == "process" else MOST_SHORTAGES
            if times > most:
                return f"its process died {times} times; the last: {cause}"
        if len(self._devices.get(number, ())) >= MOST_DEVICES:
            return f"{MOST_DEVICES} devices were lost under it in a row; the last: {cause}"
        return None

    def rest(self, number: int, by: LostBy, cause: str) -> float:
        """Let a trial rest, longer each time; return for how many seconds."""
        if by == "disk" and not self._wait_for_disk():  # later ones say the same of other files
            self._disk_fault = cause
        seconds = grow(2.0, self._counts[by][number], LONGEST_REST)
        self.rests[number] = self._clock() + seconds
        return seconds

    def wake(self) -> list[int]:
        """Return the trials whose rest is over, the earliest first."""
        now = self._clock()
        awake = [number for number, until in self.rests.items() if until <= now]
        for number in awake:
            del self.rests[number]
        return awake

    def notices(self) -> list[Notice]:
        """Return what trials rest for."""
        found = []
        if self._wait_for_disk():
            words = f"trials wait and are tried again after growing pauses: {self._disk_fault}"
            found.append(Notice("disk", words))
        if short := sum(1 for number in self.rests if self._counts["memory"][number]):
            words = (
                f"{say_count(short, 'trial')} {'waits' if short == 1 else 'wait'}, because a node "
                "had no memory left, or let no further thread run, and their processes ended. They "
                "go on by themselves. Fewer trials at once, or more memory or threads, would help"
            )
            found.append(Notice("memory", words))
        return found

    def _wait_for_disk(self) -> bool:
        return any(self._counts["disk"][number] for number in self.rests)

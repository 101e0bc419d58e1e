"""Where trials may go: all nodes but those that are cordoned for a while.

A node is cordoned if it has other code, lacks a corpus, or cannot use a device, disk or store; if
the same GPU is lost there several times; and if trials fail on it one after another and nowhere
else. It is tried again after a time that doubles with each fault.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass

from eigensweep.protocol.messages import Notice, Place
from eigensweep.results.trial_result import Outcome
from eigensweep.search_spaces.labels import say_count
from eigensweep.workers.driver.nodes.failures import MOST_HERE, Failures

logger = logging.getLogger(__name__)

MOST_LOSSES = 2
"""How often a GPU may be lost, under different trials or engines, between two reports of any that
trains on it, before its node is cordoned."""

FIRST_LEAVE, LONGEST_LEAVE = 15.0, 600.0
"""Seconds that a node is cordoned after its first failure, and at most."""

NOWHERE = "unknown"
"""The id of a node if the report names no node."""

SILENT_SECONDS = 30.0
"""Seconds without new trials for a node that did not answer after the loss of a process. Ray gives
up a dead node sooner."""

MOST_CORDONED = 3
"""The most nodes that are cordoned at once; if more fail, the nodes are not to blame, and all
trials wait."""


def grow(first: float, times: int, longest: float) -> float:
    """Return a pause that doubles each time, up to the longest.

    >>> [grow(2.0, times, 60.0) for times in (1, 2, 5, 6, 10_000)]
    [2.0, 4.0, 32.0, 60.0, 60.0]
    """
    return min(first * 2.0 ** min(times - 1, 100), longest)


@dataclass(frozen=True)
class _Cordon:
    """A node that no trial of the experiment goes to for a while."""

    until: float
    """By the clock of the cordons."""
    notice: Notice


class Cordons:
    """The nodes of one experiment, and what its driver knows of their faults."""

    def __init__(
        self,
        find_nodes: Callable[[], Set[str]] = lambda: frozenset((NOWHERE,)),
        find_silent_nodes: Callable[[], Set[str]] = frozenset,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Cordon no node yet.

        `find_nodes` returns Ray's ids of the nodes that trials can go to, and `find_silent_nodes`
        those of nodes that may be dead, whatever Ray says.
        """
        self.find_nodes, self._find_silent_nodes, self._clock = find_nodes, find_silent_nodes, clock
        self.failures = Failures()
        self.draining: Collection[str] = ()
        """Nodes that drain: no trial begins there."""
        self._cordons: dict[str, _Cordon] = {}
        self._faults: Counter[str] = Counter()
        self._losses: defaultdict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        """The engines (by process) and single trials (by number) under which each GPU of a node was
        lost since the last progress there."""
        self._silent: Set[str] = frozenset()
        """Nodes that did not answer when a process was lost."""
        self._silent_until = 0.0

    def list_avoided(self, lost: Collection[str] = ()) -> tuple[str, ...]:
        """Return the nodes that a trial avoids now.

        `lost` are the nodes on which it lost a device; it avoids them if there are others.
        """
        avoided = [*self._cordons, *self.draining, *self._list_silent()]
        if lost and self.find_nodes() - self._cordons.keys() - {*lost}:
            avoided += sorted(lost)
        return tuple(dict.fromkeys(avoided))

    def has_others(self, node: str | None) -> bool:
        """Tell whether a trial that was on this node can go to another one."""
        return node is not None and bool(self.find_nodes() - {node})

    def has_gone(self, node: str | None) -> bool:
        """Tell whether a node is none of the cluster's any more, or did not answer just now."""
        nodes = self.find_nodes()
        is_there = node in nodes or node in self.draining or NOWHERE in nodes
        return node is not None and (not is_there or node in self._silent)

    def cordon(self, node: str | None, host: str | None, cause: str, longest: float) -> str:
        """Cordon a node for a while, and return the words for its trial."""
        node = node or NOWHERE
        if node not in self._cordons:
            self._faults[node] += 1
            leave = grow(FIRST_LEAVE, self._faults[node], longest)
            words = f"a node is left out for {leave:.0f} s, then it is tried again: {cause}"
            notice = Notice("node", words, host, time.time() + leave)
            self._cordons[node] = _Cordon(self._clock() + leave, notice)
            logger.warning("node left out for %.0f s: %s", leave, cause)
        return f"{cause} (the node is left out for a while)"

    def lift(self) -> None:
        """Let trials go again to nodes that were cordoned for long enough."""
        now = self._clock()
        self._cordons = {node: each for node, each in self._cordons.items() if each.until > now}

    @property
    def leave_nothing(self) -> bool:
        """Whether no node is left, or so many failed that the nodes are not to blame."""
        if not self._cordons:
            return False
        nodes = self.find_nodes()
        return self._count(nodes) >= min(MOST_CORDONED, max(1, len(nodes)))

    def look_for_silent(self) -> None:
        """Note which nodes do not answer, now that a process was lost, perhaps with its node."""
        self._silent = self._find_silent_nodes()
        self._silent_until = self._clock() + SILENT_SECONDS

    def see_progress(self, place: Place) -> None:
        """Note that a trial makes progress at a place."""
        self.failures.see_progress(place.node_id)
        self._losses.pop((place.node_id or NOWHERE, place.device), None)

    def see_end(self, place: Place | None, outcome: Outcome, error: str | None) -> None:
        """Cordon the node on which trials fail one after another, if none fails elsewhere."""
        node = None if place is None else place.node_id
        if not self.failures.see_end(outcome, node, error) or not self.has_others(node):
            return
        assert place is not None
        last = (error or "unknown").strip().rpartition("\n")[2]
        cause = (
            f"on node {place.node} at least {MOST_HERE} trials failed in a row, and none elsewhere "
            f"meanwhile. The last: {last}"
        )
        self.cordon(node, place.node, cause, LONGEST_LEAVE)

    def see_lost_device(self, number: int, place: Place | None, cause: str) -> str:
        """Count a loss of a GPU; cordon its node if there were several. Return the cause."""
        if place is None:
            return cause
        under = self._losses[place.node_id or NOWHERE, place.device]
        under.add(("trial", number) if place.lanes is None else ("engine", place.pid))
        if len(under) < MOST_LOSSES:
            return cause
        return self.cordon(place.node_id, place.node, cause, LONGEST_LEAVE)

    def notices(self) -> list[Notice]:
        """Return which nodes are cordoned, and whether everything waits for them."""
        self.lift()
        found = [each.notice for each in self._cordons.values()]
        if self.leave_nothing:
            nodes = self.find_nodes()
            out, there = self._count(nodes), say_count(len(nodes), "node")
            verb = "is" if out == 1 else "are"
            words = (
                f"new trials wait, because {out} of {there} {verb} left out. "
                "If they all say the same, the fault may be the store's or the driver's code"
            )
            found.append(Notice("nodes", words))
        return found

    def _list_silent(self) -> list[str]:
        """Return nodes that may be dead, if there are others to go to."""
        if not self._silent or self._clock() >= self._silent_until:
            return []
        others = self.find_nodes() - self._silent - self._cordons.keys()
        return sorted(self._silent - self._cordons.keys()) if others else []

    def _count(self, nodes: Set[str]) -> int:
        """Return how many of these nodes are cordoned; nodes that are gone do not count."""
        return len(self._cordons.keys() & {*nodes, NOWHERE})

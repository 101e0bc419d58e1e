"""Nodes that drain, because their machine will be taken away: their trials commit and leave.

Ray starts nothing new on such a node, but a reused process gets its next trial without Ray. So the
driver tells the trials there to leave, each by a mark in the store, as for a pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from eigensweep.protocol.ledger import TrialEntry
from eigensweep.protocol.messages import Notice
from eigensweep.store.marks import Mark, leave_mark
from eigensweep.store.places.store_watch import StoreWatch

LOOK_SECONDS = 5.0
"""Seconds between two looks for draining nodes."""


class Draining:
    """The nodes that drain now, and the trials that were told to leave them."""

    def __init__(
        self,
        experiment: str,
        storage: str,
        store: StoreWatch,
        find: Callable[[], Mapping[str, float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` returns Ray's ids of nodes that drain, each with its deadline as Unix time."""
        self._experiment, self._storage, self._store = experiment, storage, store
        self._find, self._clock = find, clock
        self._look_at = clock()
        self.nodes: Mapping[str, float] = {}
        self._hosts: dict[str, str] = {}
        self._told: dict[tuple[int, int], Mark] = {}
        """The marks of attempts that were told to leave."""

    def look(self, training: Callable[[], Iterable[TrialEntry]]) -> None:
        """Look for nodes that drain, every few seconds, and tell their trials to leave."""
        if self._clock() < self._look_at:
            return
        self._look_at = self._clock() + LOOK_SECONDS
        self.nodes = self._find()
        if not (self.nodes or self._told) or not self._store.may_ask:
            return
        there = {}
        for entry in training():
            place = entry.place
            if place is not None and place.node_id is not None and place.node_id in self.nodes:
                self._hosts[place.node_id] = place.node
                there[entry.number, entry.attempt] = entry
        with self._store.asking():
            for key in there.keys() - self._told.keys():
                mark = leave_mark(self._storage, self._experiment, *key)
                mark.touch()
                self._told[key] = mark
            for key in self._told.keys() - there.keys():
                self._told[key].unlink()
                del self._told[key]

    def notices(self) -> list[Notice]:
        """Return which nodes drain, and until when."""
        return [self._describe(node, deadline) for node, deadline in sorted(self.nodes.items())]

    def _describe(self, node: str, deadline: float) -> Notice:
        until = f" until {datetime.fromtimestamp(deadline, UTC):%H:%M} UTC" if deadline else ""
        words = (
            f"a node drains{until}: its trials commit and go on elsewhere, and none begins there"
        )
        return Notice("node", words, self._hosts.get(node, node[:8]))

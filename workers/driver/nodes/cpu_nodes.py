"""Trials that need no GPU go to nodes without GPUs first, as long as these have room.

On a node with GPUs they would take processors that the GPUs need. Ray does not look at that when it
places the group of a trial, but a group may name a preferred node. If that node has no room by
then, Ray places the group elsewhere: so no trial waits for a node without GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import ray

from eigensweep.protocol.shares import Share
from eigensweep.workers.driver.nodes.capacity import list_living_nodes
from eigensweep.workers.ray_nodes import RayNode

LOOK_SECONDS: Final = 1.0
"""Seconds for which a look at free resources is relied on; what was placed since is subtracted."""


@dataclass
class CpuNodes:
    """The nodes without GPUs of a cluster that has both kinds. Threads may share it."""

    list_nodes: Callable[[], list[RayNode]]
    """Returns what Ray tells of each living node."""
    list_free: Callable[[], Mapping[str, Mapping[str, float]]]
    """Returns what is free on each node, by Ray's id."""
    clock: Callable[[], float] = time.monotonic
    _nodes: list[RayNode] = field(default_factory=list)
    """Those without GPUs; none if all nodes are of one kind."""
    _free: dict[str, dict[str, float]] = field(default_factory=dict)
    _with_gpus: set[str] = field(default_factory=set)
    _look_at: float = float("-inf")
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, share: Share, avoid: tuple[str, ...] = ()) -> str | None:
        """Return Ray's id of the best node for a trial; None: Ray may choose.

        The best node is the one with most free slots. `avoid` are ids of nodes to which the trial
        does not go.
        """
        if share.resources.get("GPU"):
            return None
        with self._turn:
            self._look()
            room = {
                node["NodeID"]: share.count_slots(
                    self._free.get(node["NodeID"], {}), node.get("Labels") or {}
                )
                for node in self._nodes
                if node["NodeID"] not in avoid
            }
            best = max(room, key=room.__getitem__, default=None)
            if best is None or not room[best]:
                return None
            free = self._free[best]
            for kind, amount in share.resources.items():
                free[kind] -= amount
            return best

    def has_gpus(self, node: str) -> bool:
        """Return whether a node has GPUs, in a cluster in which others have none."""
        with self._turn:
            self._look()
            return node in self._with_gpus

    def _look(self) -> None:
        if self.clock() < self._look_at:
            return
        self._look_at = self.clock() + LOOK_SECONDS
        nodes = [node for node in self.list_nodes() if node["Resources"].get("CPU")]
        with_gpus = {node["NodeID"] for node in nodes if node["Resources"].get("GPU")}
        is_mixed = 0 < len(with_gpus) < len(nodes)
        self._nodes = [n for n in nodes if n["NodeID"] not in with_gpus] if is_mixed else []
        self._with_gpus = with_gpus if is_mixed else set()
        free = self.list_free() if is_mixed else {}
        self._free = {node: dict(amounts) for node, amounts in free.items()}


def _list_free() -> Mapping[str, Mapping[str, float]]:
    return ray._private.state.available_resources_per_node()  # type: ignore[no-untyped-call]


CPU_NODES: Final = CpuNodes(list_living_nodes, _list_free)
"""Those of the cluster that this process is connected to."""

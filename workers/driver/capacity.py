"""How many trials a cluster has room for at once."""

from __future__ import annotations

import ray

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.engine.shares import Room, Share, share_of
from eigensweep.workers.shared.messages import Json


def count_slots(share: Share) -> int:
    """Return how many such trials the nodes of this cluster hold at once."""
    return sum(share.count_slots(node) for node in _nodes())


def count_nodes(share: Share) -> int:
    """Return how many nodes of this cluster hold at least one such trial."""
    return sum(share.count_slots(node) > 0 for node in _nodes())


def look_for_room(resources: ResourcesConfig, replicates: int, *, may_change: bool = True) -> Room:
    """Return how many trials with these resources run at once, or why none can.

    `may_change` says whether nodes come and go.
    """
    lanes = 1 if resources.lanes == "auto" else resources.lanes
    share = share_of(resources, replicates, lanes)
    slots = count_slots(share)
    problem = None if slots else explain_no_slot(share)
    return Room(None if resources.lanes == "auto" else slots, problem, may_change)


def explain_no_slot(share: Share) -> str:
    """Return the words for a person whose trials fit on no node."""
    need, who = share.resources, "a trial needs"
    if share.engine is not None:
        need, who = share.engine.resources, "the trials that share lanes need"
    wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in need.items())
    nodes = _nodes()
    there = "; ".join(", ".join(f"{n.get(kind, 0):g} {kind}" for kind in need) for n in nodes)
    words = f"{who} {wanted}, and no node has that; there are {there or 'no nodes'}"
    if need.get("GPU") and not any(node.get("GPU") for node in nodes):
        words += ". Leave 'gpus' out to train on CPUs"
    return words


def _nodes() -> list[dict[str, float]]:
    """Return what each living node has."""
    nodes: list[Json] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]

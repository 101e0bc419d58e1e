"""How many trials a cluster has room for at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from eigensweep.protocol.shares import Capacity, Share, share_of
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.ray_nodes import RayNode, find_silent, list_nodes


def count_slots(share: Share) -> int:
    """Return how many such trials the nodes of this cluster hold at once."""
    return sum(_count_on(node, share) for node in list_living_nodes())


def find_nodes(share: Share) -> frozenset[str]:
    """Return Ray's ids of the nodes of this cluster that hold at least one such trial."""
    return frozenset(node["NodeID"] for node in list_living_nodes() if _count_on(node, share))


def find_silent_nodes() -> frozenset[str]:
    """Return Ray's ids of the nodes that count as alive and do not answer.

    They are dead, cut off, or stand still. Ray itself waits for some 15 seconds before it says so,
    and may place trials there until then.
    """
    return find_silent(list_living_nodes())


def find_parts(share: Share) -> dict[str, float]:
    """Return the part of this cluster that one such trial takes, by kind of resource.

    A node holds whole trials only. So the remainder of a node counts as used, too, in the resource
    of which a trial takes the largest part. Empty if no node holds such a trial.
    """
    nodes, need = list_living_nodes(), share.resources
    counts = [_count_on(node, share) for node in nodes]
    if not any(counts):
        return {}
    parts = {kind: amount / _add_up(nodes, kind) for kind, amount in need.items() if amount}
    dominant = max(parts, key=parts.__getitem__)
    used = [node for node, count in zip(nodes, counts, strict=True) if count]
    whole = _add_up(used, dominant) / _add_up(nodes, dominant) / sum(counts)
    return {**parts, dominant: whole}


def look_for_room(
    resources: ResourcesConfig,
    replicates: int,
    *,
    may_change: bool,
    nodes: Sequence[RayNode],
) -> Capacity:
    """Return how many trials with these resources run at once, or why none can.

    `may_change` says whether nodes come and go; `nodes` are those that live.
    """
    lanes = 1 if resources.lanes == "auto" else resources.lanes
    share = share_of(resources, replicates, lanes)
    slots = sum(_count_on(node, share) for node in nodes)
    problem = None if slots else explain_no_slot(share, nodes)
    return Capacity(None if resources.lanes == "auto" else slots, problem, may_change)


def explain_no_slot(share: Share, nodes: Sequence[RayNode]) -> str:
    """Return the words for a person whose trials fit on none of the nodes."""
    need, who = share.resources, "a trial needs"
    if share.engine is not None:
        need, who = share.engine.resources, "the trials that share lanes need"
    wanted = _describe(need, share.labels)
    there = "; ".join(_describe_node(node, need, share.labels) for node in nodes)
    words = f"{who} {wanted}, and no node has that; there are {there or 'no nodes'}"
    if need.get("GPU") and not any(node["Resources"].get("GPU") for node in nodes):
        return words + ". Leave 'gpus' out to train on CPUs"
    most = max((node["Resources"].get("memory", 0) for node in nodes), default=0)
    if nodes and need.get("memory", 0) > most:
        less = (
            "fewer lanes" if share.engine else "a smaller batch, shorter sequences or fewer units"
        )
        words += (
            f". Less memory is taken by {less}; if the guess is wrong, give 'resources.memory' in "
            "bytes"
        )
    return words


def _add_up(nodes: Iterable[RayNode], kind: str) -> float:
    return float(sum(node["Resources"].get(kind, 0.0) for node in nodes))


def _count_on(node: RayNode, share: Share) -> int:
    return share.count_slots(node["Resources"], node.get("Labels") or {})


def _describe_node(node: RayNode, need: Mapping[str, float], labels: Mapping[str, str]) -> str:
    has, tags = node["Resources"], node.get("Labels") or {}
    here = {key: tags[key] for key in labels if key in tags}
    return _describe({kind: has.get(kind, 0) for kind in need}, here)


def _describe(amounts: Mapping[str, float], labels: Mapping[str, str]) -> str:
    """Return resources and labels in words.

    >>> _describe({"CPU": 2.0, "memory": 4e9}, {"zone": "a"})
    '2 CPU, 4.00 GB memory, label zone=a'
    """
    words = [
        f"{amount / 1e9:.2f} GB memory" if kind == "memory" else f"{amount:g} {kind}"
        for kind, amount in amounts.items()
    ]
    return ", ".join([*words, *(f"label {key}={value}" for key, value in labels.items())])


def list_living_nodes() -> list[RayNode]:
    """Return what Ray tells of each living node that does not drain."""
    nodes, draining = list_nodes(), find_draining()
    return [n for n in nodes if n["Alive"] and n.get("NodeID") not in draining]


def find_draining() -> dict[str, float]:
    """Return Ray's ids of the nodes that drain, each with its deadline in Unix time; 0: none."""
    import ray  # the service counts with what it was told, and loads no Ray

    if not ray.is_initialized():
        return {}
    found: dict[str, int] = ray._private.state.state.get_draining_nodes()
    return {node: deadline / 1000 for node, deadline in found.items()}

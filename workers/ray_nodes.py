"""What Ray tells of the nodes of a cluster. Ray is loaded when it is asked."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class RayNode(TypedDict):
    """An entry of `ray.nodes`, as far as it is read here."""

    NodeID: str
    Alive: bool
    NodeManagerAddress: str
    NodeManagerPort: int
    NodeManagerHostname: str
    RayletSocketName: str
    Resources: dict[str, float]
    Labels: NotRequired[dict[str, str]]


def list_nodes() -> list[RayNode]:
    """Return all nodes of the cluster that this process is connected to, also those that died."""
    import ray

    nodes: list[RayNode] = ray.nodes()  # type: ignore[no-untyped-call]
    return nodes

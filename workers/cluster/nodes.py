"""What a Ray cluster is made of: its nodes, and what is free on each. No Ray here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from eigensweep.protocol.shares import ACCELERATOR_LABEL
from eigensweep.workers.ray_nodes import RayNode

NONE: Mapping[str, float] = {}

GONE_SECONDS = 3600.0
"""Seconds that a lost node is shown."""


@dataclass(frozen=True)
class Amounts:
    """The amount of each resource of a node."""

    cpus: float
    gpus: float
    memory: int
    """Bytes of main memory that Ray may assign."""

    @classmethod
    def of(cls, resources: Mapping[str, float]) -> Amounts:
        """Read amounts by Ray's names."""
        cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
        return cls(cpus, gpus, int(resources.get("memory", 0)))


@dataclass(frozen=True)
class Node:
    """One node, as Ray tells of it."""

    id: str
    name: str
    """Name of the machine."""
    alive: bool
    total: Amounts
    free: Amounts | None
    """None: Ray does not say."""
    labels: dict[str, str] = field(default_factory=dict)
    """The labels that a person gave it, without Ray's own."""
    accelerator_type: str | None = None
    address: str = ""
    """In the network."""
    answers: bool = True
    """Whether Ray's process there answered at the last look."""
    drains_until: float | None = None
    """Unix time at which its machine is taken away, 0 if unknown; None: it stays."""
    gone_at: float | None = None
    """Unix time at which Ray declared it dead; None: it is alive, or the time is unknown."""


@dataclass(frozen=True)
class RayPlace:
    """Where drivers find Ray on this machine."""

    address: str
    """Of the control process, as `host:port`."""
    logs: str
    """Folder of the logs of this machine's processes."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """A snapshot of a cluster."""

    nodes: list[Node]
    living: list[RayNode]
    """What Ray tells of each living node that does not drain."""
    may_change: bool
    """Whether nodes come and go."""
    problem: str | None = None
    """Why no driver can be started or asked, although the head of the cluster answers."""
    drivers: frozenset[str] = frozenset()
    """Experiments that are driven by what an earlier service has started."""


def read_nodes(
    nodes: Iterable[RayNode],
    free: Mapping[str, Mapping[str, float]],
    silent: Collection[str] = (),
    draining: Mapping[str, float] = NONE,
    gone: Mapping[str, float] = NONE,
    now: float = 0.0,
) -> list[Node]:
    """Return nodes, the living ones first; `free` has their free resources by node id.

    `silent` are the ids of nodes that do not answer, `draining` has the deadlines of draining
    nodes, and `gone` the times at which nodes died. Nodes that died `GONE_SECONDS` before `now` are
    left out.
    """
    found = []
    for node in nodes:
        id, labels = node["NodeID"], node.get("Labels") or {}
        if gone.get(id, now) < now - GONE_SECONDS:
            continue
        made = Node(
            id=id,
            name=node["NodeManagerHostname"],
            alive=node["Alive"],
            total=Amounts.of(node["Resources"]),
            free=Amounts.of(free[id]) if id in free and node["Alive"] else None,
            labels={key: value for key, value in labels.items() if not key.startswith("ray.io/")},
            accelerator_type=labels.get(ACCELERATOR_LABEL),
            address=node.get("NodeManagerAddress", ""),
            answers=id not in silent,
            drains_until=draining.get(id),
            gone_at=gone.get(id),
        )
        found.append(made)
    return sorted(found, key=lambda node: (not node.alive, node.name, node.id))

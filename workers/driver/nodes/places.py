"""Where the processes of trials run, as Ray knows it as soon as they are up."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import ray
from ray.actor import ActorHandle

from eigensweep.protocol.messages import Order, Place
from eigensweep.workers.ray_nodes import list_nodes


def find_place(actor: Any, order: Order) -> Place | None:
    """Return where the process of a trial runs; None if Ray does not say.

    This is the trial's thin process. If another process trains, the first report names that one.
    """
    return place_actor(actor._actor_id.hex(), order) if isinstance(actor, ActorHandle) else None


def place_actor(actor_id: str, order: Order) -> Place | None:
    """Return the same for Ray's id of the process, which may have ended."""
    found = _find_process(actor_id)
    if found is None or not found[0]:
        return None
    node, pid = found
    device = "cuda" if order.resources.get("GPU") else "cpu"
    return Place(_name_host(node), pid, device, node_id=node)


@lru_cache(maxsize=4096)
def _find_process(actor: str) -> tuple[str, int] | None:
    """Return Ray's id of the node and the number of the process: asked once for each process."""
    told: Any = ray._private.state.actors(actor)
    return (told["Address"]["NodeID"], told["Pid"]) if told else None


@lru_cache(maxsize=4096)
def _name_host(node: str) -> str:
    return next((n["NodeManagerHostname"] for n in list_nodes() if n["NodeID"] == node), node)

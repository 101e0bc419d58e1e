"""How many trials a cluster has room for at once."""

from __future__ import annotations

import ray

from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.workers.shared.messages import Json


def ray_resources(resources: ResourcesConfig) -> dict[str, float]:
    """Return what one trial occupies, in Ray's words."""
    gpus = {"GPU": resources.gpus} if resources.gpus else {}
    return {"CPU": resources.cpus, **gpus}


def count_slots(resources: ResourcesConfig) -> int:
    """Return how many such trials the nodes of this cluster hold at once."""
    need = ray_resources(resources)
    return sum(
        min(int(node.get(kind, 0) // amount) for kind, amount in need.items()) for node in _nodes()
    )


def explain_no_slot(resources: ResourcesConfig) -> str:
    """Return the words for a person whose trials fit on no node."""
    need = ray_resources(resources)
    wanted = ", ".join(f"{amount:g} {kind}" for kind, amount in need.items())
    nodes = [", ".join(f"{node.get(kind, 0):g} {kind}" for kind in need) for node in _nodes()]
    return f"resources: a trial needs {wanted}, and no node has that; there are {'; '.join(nodes)}"


def _nodes() -> list[dict[str, float]]:
    """Return what each living node has."""
    nodes: list[Json] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]

"""`eigensweep nodes`: the nodes that trials run on, who uses them, and why something waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import typer
from rich.console import Console

from eigensweep.client.answers.tables import Table
from eigensweep.client.connection import JsonObject
from eigensweep.command.frame import Call

NODE_HEADS = (
    *("node", "address", "state", "free CPUs", "free GPUs", "free memory", "kind of GPU", "labels"),
)
USE_HEADS = ("experiment", "trial", "owner", "node", "process", "device")
WAIT_HEADS = ("experiment", "name", "owner", "state", "why it waits")


def show_nodes(call: Call) -> None:
    """Show the nodes that trials run on, who uses them, and why something waits."""
    call.tell(call.client.cluster(), lambda found: _show_nodes(found, call.screen))


def _show_nodes(found: JsonObject, screen: Console) -> None:
    if found["leader"]:
        typer.echo(found["leader"]["words"])
    if found["problem"]:
        unknown = "" if found["nodes"] else "the nodes are not known: "
        typer.echo(f"{unknown}{found['problem']}", err=True)
    names = name_nodes(found["nodes"])
    rows = [make_node_row(node, names[node["id"]]) for node in found["nodes"]]
    Table(NODE_HEADS, rows).show(screen)
    for engine in found["engines"]:
        typer.echo(
            f"engine of {engine['node']}, process {engine['pid']}, {engine['device']}: "
            f"{engine['used']} of {engine['lanes']} lanes in use"
        )
    if found["uses"]:
        Table(USE_HEADS, (make_use_row(use, names) for use in found["uses"])).show(screen)
    if found["waiting"]:
        kinds = ("experiment", "name", "owner", "state", "why")
        Table(WAIT_HEADS, ([wait[kind] for kind in kinds] for wait in found["waiting"])).show(
            screen
        )
    if found["more_waiting"]:
        typer.echo(
            f"{found['unfinished']} experiments are not over; `eigensweep list --state queued` "
            "and `--state paused` show more"
        )


def name_nodes(nodes: Sequence[JsonObject]) -> dict[str, str]:
    """Return a name for each node by its id; where hosts have one name, with the id's beginning."""
    count = Counter(node["name"] for node in nodes)
    return {
        node["id"]: node["name"] if count[node["name"]] == 1 else f"{node['name']} {node['id'][:8]}"
        for node in nodes
    }


def make_node_row(node: JsonObject, name: str) -> list[str]:
    """Return the row of a node of this name."""
    total, free = node["total"], node["free"]
    parts = [("cpus", 1.0), ("gpus", 1.0), ("memory_bytes", 1e9)]
    amounts = [
        ("" if free is None else f"{free[kind] / unit:.4g} of ") + f"{total[kind] / unit:.4g}"
        for kind, unit in parts
    ]
    amounts[-1] += " GB"
    labels = ", ".join(f"{key}={value}" for key, value in node["labels"].items())
    state = "alive" if node["answers"] else "does not answer"
    if not node["alive"]:
        state = f"gone since {node['gone_at']}" if node["gone_at"] else "gone"
    if node["drains"] and state == "alive":
        state = f"drains until {node['drains_until']}" if node["drains_until"] else "drains"
    return [name, node["address"], state, *amounts, node["accelerator_type"] or "-", labels or "-"]


def make_use_row(use: JsonObject, names: Mapping[str, str]) -> list[str]:
    """Return the row of a trial that has a process; `names` are those of nodes by their ids."""
    where = (names.get(use["node_id"] or "", use["node"]), use["pid"], use["device"])
    return [
        use["experiment"],
        str(use["trial"]),
        use["owner"],
        *("-" if part is None else str(part) for part in where),
    ]

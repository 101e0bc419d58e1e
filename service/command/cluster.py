"""`eigensweep cluster`: starts, shows and ends a development cluster on this machine.

Runs in a user's terminal. What it starts loads Ray and MLflow, in processes of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from platformdirs import user_data_path

from eigensweep.search_spaces.labels import say_count
from eigensweep.service.client.tables import Table
from eigensweep.service.command.frame import FAILURE, INTERRUPTED, Call, command

if TYPE_CHECKING:
    from eigensweep.service.process.development_cluster import Cluster, Plan


def _choose_folder(folder: Path | None) -> Path:
    return (folder or user_data_path("eigensweep-cluster")).absolute()


Folder = Annotated[
    Path | None,
    typer.Option(
        callback=_choose_folder,
        metavar="FOLDER",
        help="Folder of the cluster: databases, checkpoints, logs, and what runs now; default: "
        "`eigensweep-cluster` in your data folder.",
    ),
]

cluster = typer.Typer(
    name="cluster",
    help="Start, look at and end a development cluster: several Ray nodes on this machine.",
    no_args_is_help=True,
)


@cluster.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, help="Ray nodes that train, beside the head.")] = 2,
    cpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Processors that each node offers; default: an equal share."),
    ] = None,
    sqlite: Annotated[
        bool, typer.Option("--sqlite", help="Do without PostgreSQL: files in the folder.")
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The service's port; default: 8642 or the next free."),
    ] = None,
    folder: Folder = None,
) -> None:
    """Start PostgreSQL, MLflow, a Ray head, nodes and the service; return when all are ready.

    Nodes start one after another. If something does not start, everything is ended again.
    """
    from eigensweep.service.process.development_cluster import Plan, bring_up

    assert folder is not None
    started = time.monotonic()
    shared = max(1, (os.cpu_count() or 1) // nodes)
    plan = Plan(nodes, cpus_per_node or shared, not sqlite, port)
    with _failures(), _signals():
        made = bring_up(folder, plan, typer.echo)
    typer.echo(describe(made, plan, time.monotonic() - started))


@command(cluster, asks=False)
def status(call: Call, folder: Folder = None) -> None:
    """Show each process of the cluster. Ends with 1 if one has ended, or if there is none."""
    from eigensweep.service.process.development_cluster import Cluster

    assert folder is not None
    found = Cluster.read(folder)
    rows = [
        (part.name, "running" if part.find() else "ended", part.pid, part.address, part.log)
        for part in found.parts
    ]
    heads = ("process", "state", "pid", "address", "log")
    processes = [dict(zip(heads, row, strict=True)) for row in rows]
    none = f"no cluster runs in {folder}; `eigensweep cluster up` starts one"
    content = {"url": found.url or None, "processes": processes}
    call.tell(content, lambda _: Table(heads, rows) if rows else none)
    if not rows or any(row[1] == "ended" for row in rows):
        raise typer.Exit(FAILURE)


@cluster.command()
def down(
    folder: Folder = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Remove the folder with all results, too.")
    ] = False,
) -> None:
    """End every process of the cluster and wait until they are gone; results stay."""
    from eigensweep.service.process.development_cluster import take_down

    assert folder is not None
    with _failures():
        was_there = take_down(folder, typer.echo, delete)
    words = "the cluster has ended" if was_there else f"no cluster ran in {folder}"
    if delete:
        words += f"; {folder} is removed"
    elif was_there:
        words += f"; its results stay in {folder}, and `eigensweep cluster up` goes on with them"
    typer.echo(words)


def describe(made: Cluster, plan: Plan, seconds: float) -> str:
    """Return what a user needs to know of a cluster that is ready."""
    where = "" if made.folder == _choose_folder(None) else f" --folder {made.folder}"
    nodes = f"{say_count(plan.nodes, 'node')} with {say_count(plan.cpus, 'processor')} each"
    head = next(part.log for part in made.parts if part.name == "head")
    return "\n".join(
        [
            f"The cluster is ready after {seconds:.0f} s: {nodes}.",
            f"  service   {made.url} (MLflow: {made.url}/mlflow)",
            f"  results   {made.folder}",
            f"  logs      {Path(head).parent}",
            "",
            f"  export EIGENSWEEP_URL={made.url}",
            "  eigensweep submit quickstart --follow",
            "  eigensweep list",
            f"  eigensweep cluster status{where}",
            f"  eigensweep cluster down{where}",
        ]
    )


@contextmanager
def _failures() -> Iterator[None]:
    """Turn what prevents a cluster into a message and an exit code."""
    from eigensweep.service.settings import StartError

    try:
        yield
    except (StartError, OSError) as error:
        Call().fail(str(error), "The cluster failed", FAILURE)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _signals() -> Iterator[None]:
    """Let a signal that ends this process end what it has started, too."""
    kinds = (signal.SIGTERM, signal.SIGHUP)
    before = {kind: signal.signal(kind, lambda number, _: sys.exit(128 + number)) for kind in kinds}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)

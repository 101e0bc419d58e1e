"""`eigensweep du` and `prune`: what takes disk space, and the removal of old checkpoints.

Runs in a user's terminal and asks the service.
"""

from __future__ import annotations

from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.filesize import decimal

from eigensweep.client.answers.tables import Table
from eigensweep.client.connection import JsonObject
from eigensweep.command.frame import FAILURE, SECONDS, Call, read_seconds


def show_use(call: Call) -> None:
    """Show what takes disk space: parts of the home folder, users, experiments."""
    call.tell(call.client.storage(), lambda use: _show_use(use, call.screen))


def _show_use(use: JsonObject, screen: Console) -> None:
    parts = [(each["name"], decimal(each["bytes"]), each["place"]) for each in use["parts"]]
    Table(("part", "size", "place"), parts).show(screen)
    typer.echo(f"{decimal(use['total'])} in all")
    if not use["users"]:
        return
    users = [(each["user"], each["experiments"], decimal(each["bytes"])) for each in use["users"]]
    Table(("user", "experiments", "stored"), users).show(screen)
    sizes = ("checkpoints", "weights", "curves")
    rows = [
        (each["id"], each["name"], each["owner"], *(decimal(each[size]) for size in sizes))
        for each in use["experiments"]
    ]
    Table(("id", "name", "user", *sizes), rows).show(screen)


def prune(
    call: Call,
    keep: Annotated[
        Literal["last", "best", "none"],
        typer.Option(
            help="What stays of each seed of a trial. last: the last checkpoint and the best "
            "weights; best: the best weights, so that no completed trial can train on with a "
            "longer budget; none: only curves and results, and a retry begins anew."
        ),
    ] = "last",
    experiment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXPERIMENT",
            help="An experiment; repeatable. Default: all that are over, and yours unless you "
            "are an admin.",
        ),
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only experiments that ended so long ago, such as 30d."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be removed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it for good.")] = False,
) -> None:
    """Remove checkpoints of experiments that are over; their results and curves stay."""
    if dry_run == yes:
        words = "say --dry-run to see what would be removed, or --yes to remove it for good"
        call.fail(words, "It was not confirmed")
    days = None if older_than is None else read_seconds(older_than) / SECONDS["d"]
    chosen = experiment or ()
    found = call.client.prune(keep, *chosen, older_than_days=days, dry_run=dry_run)
    call.tell(found, lambda _: _show_removal(found, keep, "would free" if dry_run else "frees"))
    if any(each["problem"] is not None for each in found["items"]):
        raise typer.Exit(FAILURE)


def _show_removal(found: JsonObject, keep: str, does: str) -> None:
    for each in found["items"]:
        words = each["problem"] or decimal(each["bytes"])
        typer.echo(f"{each['id']} {words}", err=each["problem"] is not None)
    typer.echo(f"keep {keep}: {does} {decimal(found['bytes'])}")
    if does == "frees":
        typer.echo("if one has to wait, `eigensweep show EXPERIMENT` says why")
    if found["more"]:
        more = "run it again for those" if does == "frees" else "it is not known yet what they free"
        typer.echo(f"there are more experiments; {more}")

"""`eigensweep du` and `prune`: what takes disk space, and the removal of old checkpoints.

Runs in a user's terminal and asks the service.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.filesize import decimal

from eigensweep.service.command import terminal
from eigensweep.service.command.connecting import Url, connect, fail
from eigensweep.service.command.options import BAD_INPUT, FAILURE, SECONDS, AsJson, read_seconds


def show_use(url: Url = None, as_json: AsJson = False) -> None:
    """Show what takes disk space: parts of the home folder, users, experiments."""
    with connect(url, as_json) as client:
        use = client.storage()
    if as_json:
        typer.echo(json.dumps(use, indent=2))
        return
    screen = terminal.console()
    parts = [(each["name"], decimal(each["bytes"]), each["place"]) for each in use["parts"]]
    terminal.show_rows(("part", "size", "place"), parts, screen)
    typer.echo(f"{decimal(use['total'])} in all")
    users = [(each["user"], each["experiments"], decimal(each["bytes"])) for each in use["users"]]
    terminal.show_rows(("user", "experiments", "stored"), users, screen)
    sizes = ("checkpoints", "weights", "curves")
    rows = [
        (each["id"], each["name"], each["owner"], *(decimal(each[size]) for size in sizes))
        for each in use["experiments"]
    ]
    terminal.show_rows(("id", "name", "user", *sizes), rows, screen)


def prune(
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
            metavar="ID",
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
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Remove checkpoints of experiments that are over; their results and curves stay."""
    if dry_run == yes:
        words = "say --dry-run to see what would be removed, or --yes to remove it for good"
        fail(
            f"error: {words}",
            {"title": "It was not confirmed", "detail": words},
            as_json,
            BAD_INPUT,
        )
    days = None if older_than is None else read_seconds(older_than) / SECONDS["d"]
    with connect(url, as_json) as client:
        found = client.prune(keep, *(experiment or ()), older_than_days=days, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for each in found["items"]:
            words = each["problem"] or decimal(each["bytes"])
            typer.echo(f"{each['id']} {words}", err=each["problem"] is not None)
        does = "would free" if dry_run else "frees"
        typer.echo(f"keep {keep}: {does} {decimal(found['bytes'])}")
        if found["more"]:
            typer.echo("there are more experiments; run it again for those")
    if any(each["problem"] is not None for each in found["items"]):
        raise typer.Exit(FAILURE)

"""What `eigensweep reproduce` does: posts reproductions, follows them, and saves their reports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

from platformdirs import user_data_path
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from eigensweep.service.client import Client, ServiceAwayError
from eigensweep.service.client.connection import JsonObject, outlast_restart
from eigensweep.service.client.reproductions import Reproduction
from eigensweep.service.command import terminal
from eigensweep.service.command.quickstart import NotReadyError, running_service

PASS_SECONDS = 2.0
"""Pause between two looks at the reproductions."""


def choose(client: Client, budget: str) -> list[str]:
    """Return the suites that `--all` runs: those that need nothing that is missing here."""
    listing = client.get("/v1/reproduction-suites")["items"]
    return [
        suite["name"]
        for suite in listing
        if suite["needs"] is None and not (budget == "full" and suite["full_is_long"])
    ]


def show_list(client: Client, screen: Console) -> None:
    """Print all suites with a guess of their cost."""
    rows = [
        (
            suite["name"],
            suite["title"],
            f"{suite['core_minutes']['short']:.0f}",
            f"{suite['core_minutes']['full'] / 60:.1f}",
            suite["needs"] or "",
        )
        for suite in client.get("/v1/reproduction-suites")["items"]
    ]
    heads = ("name", "what it shows", "short, core min", "full, core h", "needs")
    terminal.show_rows(heads, rows, screen)


def follow(
    client: Client, names: Sequence[str], budget: str, screen: Console, *, quiet: bool = False
) -> list[Reproduction]:
    """Post reproductions, in order, and return them when all are over."""
    all_of_them = [client.reproduce(name, budget) for name in names]
    bar = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
    with Progress(
        *bar, TimeElapsedColumn(), console=screen, disable=quiet or not screen.is_terminal
    ) as bars:
        tasks = {each.id: bars.add_task(each.name, total=1.0, state="") for each in all_of_them}
        seen: dict[str, str] = {}
        while True:
            for each in all_of_them:
                if not each.is_over or each.id not in seen:
                    outlast_restart(each.refresh)
                    _show(each, bars, tasks[each.id], seen, None if quiet else screen)
            if all(each.is_over for each in all_of_them):
                return all_of_them
            time.sleep(PASS_SECONDS)


def _show(
    each: Reproduction, bars: Progress, task: TaskID, seen: dict[str, str], screen: Console | None
) -> None:
    words = each.state if not each.is_over else describe_end(each.content)
    bars.update(task, completed=each.content["fraction"], state=words)
    if screen is not None and not screen.is_terminal and seen.get(each.id) != words:
        screen.print(f"{each.name} {words}", markup=False)
    seen[each.id] = words


def show_end(
    client: Client,
    ended: Sequence[Reproduction],
    out: Path | None,
    page: Path | None,
    screen: Console,
) -> None:
    """Print how reproductions ended: one as its whole report, several as a table."""
    if len(ended) == 1 and ended[0].state == "finished":
        screen.print(ended[0].file("md").decode(), markup=False, soft_wrap=True)
    elif len(ended) > 1:
        rows = [(each.name, describe_end(each.content)) for each in ended]
        terminal.show_rows(("reproduction", "verdict"), rows, screen)
    for place in (out, page):
        if place is not None:
            screen.print(f"written: {place}", markup=False)
    reports = [each.content["links"]["report"].get("html") for each in ended]
    if len(reports) == 1 and reports[0]:
        screen.print(f"report: {client.url}{reports[0]}", markup=False)


def describe_end(content: JsonObject) -> str:
    """Return how a reproduction ended, in a line."""
    if content["state"] == "finished":
        return f"{content['verdict']}: {content['words']}"
    error = (content["error"] or "").strip().splitlines()
    return f"{content['state']}{': ' + error[-1] if error else ''}"


def save_page(client: Client, budget: str, page: Path) -> None:
    """Write all finished reports as one Markdown page, the pictures into a folder beside it."""
    query = {"budget": budget, "state": "finished"}
    for content in client.get(Reproduction.listing_path, **query)["items"]:
        Reproduction(client, content).save(page.parent / page.stem, ["svg"])
    asked = urlencode({"budget": budget, "figures": page.stem})
    page.write_bytes(client.download(f"/v1/reproduction-page?{asked}"))


@contextmanager
def service_of_our_own(screen: Console) -> Iterator[Client]:
    """Lend a client of the service of this machine; start one if there is none, and end it then."""
    with Client() as client:
        try:
            client.get("/readyz")
        except ServiceAwayError:
            home = Path(os.environ.get("EIGENSWEEP_HOME") or user_data_path("eigensweep"))
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                with running_service(home, screen) as started:
                    yield started
            except NotReadyError as error:
                raise ServiceAwayError(str(error)) from error
        else:
            yield client

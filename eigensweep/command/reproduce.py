"""What `eigensweep reproduce` does: posts reproductions, follows them, and saves their reports."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from eigensweep.client import Client, RefusedError, ServiceAwayError
from eigensweep.client.answers.tables import Table
from eigensweep.client.connection import find_home, may_pass, outlast_restart, read_own_url
from eigensweep.client.reproductions import Reproduction
from eigensweep.client.spec_file import InputError
from eigensweep.command.frame import FAILURE, Call, read_settings
from eigensweep.command.quickstart import NotReadyError, hear_signals, running_service
from eigensweep.protocol.states import UNTRAINED
from eigensweep.search_spaces.labels import is_number

RESULTS_VARIABLE = "EIGENSWEEP_RESULTS"
"""Tells a service where results are that it takes up."""
PASS_SECONDS = 2.0
"""Pause between two looks at the reproductions."""
LOST: Final = UNTRAINED | {"cancelled"}
"""States of a trial that has not come to its end: a retry may bring it there."""


if TYPE_CHECKING:
    from eigensweep.reports.messages import Results
    from eigensweep.service.settings import Settings


def choose(client: Client, budget: str) -> list[str]:
    """Return the suites that `--all` runs: those that need nothing that is missing here."""
    listing = client.get("/v1/reproduction-suites")["items"]
    return [
        suite["name"]
        for suite in listing
        if suite["needs"] is None and not (budget == "full" and suite["full_is_long"])
    ]


def path_of_suite(name: str) -> str:
    """Return where the API has a suite.

    Raises:
        InputError: if the name is empty or has dots alone, which would ask for the list.
    """
    if not name.strip("."):
        raise InputError(f"expected the name of a table or figure, got {name!r}: see `--list`")
    return f"/v1/reproduction-suites/{quote(name)}"


def show_suites(call: Call) -> None:
    """Show all suites with a guess of their cost."""
    found = call.near.get("/v1/reproduction-suites")
    rows = [
        (
            *(suite["name"], suite["title"], f"{suite['core_minutes']['short']:.0f}"),
            *(f"{suite['core_minutes']['full'] / 60:.1f}", suite["needs"] or ""),
        )
        for suite in found["items"]
    ]
    heads = ("name", "what it shows", "short, core min", "full, core h", "needs")
    call.tell(found, lambda _: Table(heads, rows))


def follow(
    client: Client,
    names: Sequence[str],
    budget: str,
    screen: Console,
    *,
    quiet: bool = False,
    lives: Callable[[], bool] | None = None,
    **asked: Any,
) -> list[Reproduction]:
    """Post reproductions, in order, and return them when all are over.

    `lives` tells whether the service lives: while it does, it is waited for, however long it does
    not answer. None: that is unknown. `asked` is what `Client.reproduce` takes beside.
    """
    names = list(dict.fromkeys(names))
    for name in names if len(names) > 1 else ():
        client.get(path_of_suite(name))  # a wrong name is refused before any trains
    all_of_them = [client.reproduce(name, budget, **asked) for name in names]
    bar = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}")
    with Progress(
        *bar, TimeElapsedColumn(), console=screen, disable=quiet or not screen.is_terminal
    ) as bars:
        tasks = {each.id: bars.add_task(each.name, total=1.0, state="") for each in all_of_them}
        seen: dict[str, str] = {}
        while True:
            for each in all_of_them:
                if not each.is_over or each.id not in seen:
                    _refresh(each, lives)
                    _show(each, bars, tasks[each.id], seen, None if quiet else screen)
            if all(each.is_over for each in all_of_them):
                return all_of_them
            time.sleep(PASS_SECONDS)


def _refresh(each: Reproduction, lives: Callable[[], bool] | None) -> None:
    while True:
        try:
            outlast_restart(each.refresh)
        except (ServiceAwayError, RefusedError) as error:
            if not may_pass(error) or lives is None or not lives():
                raise
        else:
            return


def _show(
    each: Reproduction, bars: Progress, task: TaskID, seen: dict[str, str], screen: Console | None
) -> None:
    words = describe_state(each) if not each.is_over else describe_end(each)
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
        rows = [(each.name, describe_end(each)) for each in ended]
        Table(("reproduction", "verdict"), rows).show(screen)
    is_written = any(each.state == "finished" for each in ended)
    for place in (out if is_written else None, page):
        if place is not None:
            screen.print(f"written: {place}", markup=False)
    reports = [each.content["links"]["report"].get("html") for each in ended]
    if len(reports) == 1 and reports[0]:
        screen.print(f"report: {client.url}{reports[0]}", markup=False)


def make_resources(
    cpus: float | None, gpus: float | None, lanes: str | None
) -> dict[str, object] | None:
    """Return the resources that the command's options ask for; None: those of the suite.

    >>> make_resources(None, 1.0, "8"), make_resources(None, None, None)
    ({'gpus': 1.0, 'lanes': 8}, None)
    """
    number = int(lanes) if lanes is not None and is_number(lanes) else lanes
    asked: dict[str, object] = {"cpus": cpus, "gpus": gpus, "lanes": number}
    return {name: each for name, each in asked.items() if each is not None} or None


def show_plan(client: Client, name: str, budget: str, screen: Console) -> None:
    """Print how many seeds and core hours it takes to decide differences of some sizes."""
    plan = client.get(path_of_suite(name))["plan"][budget]
    if not plan:
        screen.print(f"{name}: more seeds decide nothing in this budget", markup=False)
    for each in plan:
        seeds = "more than 1,000" if each["seeds"] is None else f"about {each['seeds']}"
        hours = "" if not each["core_hours"] else f", {each['core_hours']:g} core hours"
        words = f"{name}: to decide {each['difference']}: {seeds} seeds{hours}"
        screen.print(words, markup=False)


def describe_state(each: Reproduction) -> str:
    """Return the state of a reproduction that is not over."""
    content = each.content
    until = content.get("until_decided")
    return each.state + (f" with {until['seeds'][-1]} seeds" if until else "")


def describe_end(each: Reproduction) -> str:
    """Return how a reproduction ended, in a line."""
    content = each.content
    if content["state"] == "finished":
        return f"{content['verdict']}: {content['words']}"
    error = (content["error"] or "").strip().splitlines()
    return f"{content['state']}{': ' + error[-1] if error else ''}"


def save_results(
    client: Client, names: Collection[str], budget: str, folder: Path, note: str | None
) -> list[str]:
    """Keep the results of the finished reproductions of these suites, a file for each.

    A file that has more seeds than the service is left as it is. `note` says what else ran on the
    machine. Return why some were not kept.
    """
    from eigensweep.reports.results import name_file, read_results
    from eigensweep.store.places.durable_files import StorageError

    problems = []
    query = {"budget": budget, "state": "finished"}
    for content in client.get(Reproduction.listing_path, **query)["items"]:
        each = Reproduction(client, content)
        if content["name"] not in names or "results" not in content["links"]["report"]:
            continue
        try:
            content = outlast_restart(partial(each.file, "results"))
        except RefusedError as error:
            if error.status != 404:
                raise
            continue  # an older version made the report
        try:
            found = read_results(content)
            kept = keep_file(found.model_copy(update={"note": note}), folder)
            if kept is None:
                path = folder / name_file(found.name, found.budget)
                typer.echo(f"{path} has more seeds than was measured now, and stays", err=True)
        except (OSError, ValueError, StorageError) as error:
            problems.append(str(error))
    return problems


def keep_finished(
    settings: Settings, folder: Path, note: str | None, names: Collection[str] = ()
) -> tuple[list[Path], list[str]]:
    """Keep the results of what has finished in the home folder, without a service.

    Return the files that were written, and why others were not.

    With `names`, only of those suites. Without a note, that of the file before stays.

    A reproduction has finished if all of its experiments are completed, even if it has no report,
    and none of their trials was lost.
    Where it has one, the results name the machine and revision that the report names. Of any other
    reproduction the trials and seeds that have finished are kept, in the folder `unfinished` below.
    One whose suite or experiments are gone is left out, and that is printed.

    Raises:
        SQLAlchemyError: if the record cannot be read.
        OSError: if a file of the home folder cannot be read.
        StorageError: if the store cannot be read.
    """
    from eigensweep.reports.messages import JSON
    from eigensweep.reports.results import collect, with_what_has_ended
    from eigensweep.service.queue.reproductions import ReproductionHandler
    from eigensweep.service.record.jobs import Jobs
    from eigensweep.service.record.record import Record
    from eigensweep.service.record.requests.analyses import Analyses
    from eigensweep.service.record.requests.reproductions import Reproductions
    from eigensweep.service.store_probe import StoreProbe
    from eigensweep.store.places.durable_files import StorageError

    record, probe = Record(settings.database), StoreProbe(settings.storage_folder)
    jobs = Jobs(settings.database)
    kept = Reproductions(jobs, settings.home / "reproductions", record, settings.corpora)
    analyses = Analyses(jobs, settings.home / "analyses")
    reproducer = ReproductionHandler(probe, kept, record, analyses)
    keep_ended = partial(with_what_has_ended, store=probe.store, data_root=settings.corpora)
    written, problems = list[Path](), list[str]()
    for found in kept.list():
        if names and found.name not in names:
            continue
        is_whole = found.state == "finished" or kept.has_trained(found)
        try:
            order = reproducer.make_order(found, None if is_whole else keep_ended)
            trials = (trial for each in order.experiments for trial in each.trials)
            if is_whole and any(trial.state in LOST for trial in trials):
                is_whole, order = False, reproducer.make_order(found, keep_ended)
        except (LookupError, ValueError) as error:
            typer.echo(f"{found.name} ({found.budget}) is left out: {error}", err=True)
            continue
        about: dict[str, object] = {"note": note}
        place = kept.folder / found.id / JSON
        if found.state == "finished" and place.is_file():
            report = json.loads(place.read_bytes())
            about |= {name: report[name] for name in ("versions", "revision", "processor")}
            about |= {"made_at": datetime.fromisoformat(report["made_at"])}
        try:
            results = collect(order).model_copy(update=about)
            path = keep_file(results, folder, is_whole=is_whole)
        except (OSError, ValueError, StorageError) as error:  # the others are kept
            problems.append(str(error))
        else:
            written += [] if path is None else [path]
    return written, problems


def keep_file(results: Results, folder: Path, *, is_whole: bool = True) -> Path | None:
    """Write results into their file, unless that has more seeds; return it if it was written.

    Those that are not whole are added to what other machines have trained of the same suite. They
    are written if there are then more seeds than in each file.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file holds no results that this version can read.
        StorageError: if it cannot be written.
    """
    from eigensweep.reports.results import UNFINISHED, count_seeds, merge, name_file, write_results
    from eigensweep.store.places.durable_files import make_folder, write_whole

    path = folder / name_file(results.name, results.budget)
    part = folder / UNFINISHED / path.name
    whole, unfinished = _read(path), _read(part)
    in_whole, in_part = (0 if each is None else count_seeds(each) for each in (whole, unfinished))
    both = results if unfinished is None else merge(unfinished, results)
    if not is_whole:
        path, results = part, both
    if count_seeds(results) < (max(1, in_whole) if is_whole else max(in_whole, in_part) + 1):
        return None
    before = (whole or unfinished) if is_whole else unfinished
    if results.note is None and before is not None:
        results = results.model_copy(update={"note": before.note})
    make_folder(path.parent)
    write_whole(path, write_results(results))
    if is_whole and count_seeds(both) <= count_seeds(results):
        part.unlink(missing_ok=True)
    return path


def _read(path: Path) -> Results | None:
    from eigensweep.reports.results import read_results

    try:
        return read_results(path.read_bytes()) if path.is_file() else None
    except ValueError as error:
        raise ValueError(f"{path} holds no results that this version can read: {error}") from error


def keep_results_of_home(
    call: Call, results: Path, note: str | None, names: Collection[str] = ()
) -> tuple[list[Path], list[str]]:
    """Keep the results of the home folder, or end with why that is not possible.

    What is returned is that of `keep_finished`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from eigensweep.search_spaces.errors import UnknownSuiteError
    from eigensweep.search_spaces.shipped.reproductions import load_suite
    from eigensweep.service.process.backup import RECORD
    from eigensweep.store.places.durable_files import StorageError

    try:
        for name in names:
            load_suite(name)
        settings = read_settings()
    except UnknownSuiteError as error:
        call.fail(str(error), "The input cannot be read")
    if settings.database_url is None and not (settings.home / RECORD).exists():
        words = f"there is no record in {settings.home}; set EIGENSWEEP_HOME to a service's home"
        call.fail(words, "No results", FAILURE)
    try:
        written, problems = keep_finished(settings, results, note, names)
    except (OSError, ValueError, SQLAlchemyError, StorageError) as error:
        call.fail(str(error), "No results", FAILURE)
    if not written and not problems:
        typer.echo(f"{results}: there is nothing new to keep", err=True)
    return written, problems


def tell_problems(problems: Collection[str]) -> None:
    """Print why results were not kept; end with that, if they were not."""
    for problem in problems:
        typer.echo(f"error: results were not kept: {problem}", err=True)
    if problems:
        raise typer.Exit(FAILURE)


def write_page(call: Call, results: Path, page: Path) -> None:
    """Make the page of all results in a folder, or end with what is wrong with them."""
    from eigensweep.reports.book import make_page
    from eigensweep.store.places.durable_files import StorageError

    try:
        make_page(results, page)
    except (OSError, ValueError, StorageError) as error:
        call.fail(str(error), "The page cannot be made")


def own_service_lives() -> bool:
    """Return whether the process of this machine's service lives, though it may not answer."""
    return read_own_url(find_home()) is not None


@contextmanager
def service_of_our_own(call: Call, results: Path | None) -> Iterator[Client]:
    """Lend a client of the service of this machine; start one if there is none, and end it then.

    One that is started takes up the `results` in a folder.
    """
    with Client() as client:
        try:
            client.get("/readyz")
        except ServiceAwayError:
            home = find_home()
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if results is not None and results.is_dir():
                os.environ.setdefault(RESULTS_VARIABLE, str(results.absolute()))
            hear_signals()
            try:
                screen = Console(stderr=True) if call.as_json else call.screen
                with running_service(home, screen) as started:
                    yield started
            except NotReadyError as error:
                raise ServiceAwayError(str(error)) from error
        else:
            yield client

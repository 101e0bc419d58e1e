"""`eigensweep data`: the corpora under the data root. Runs in a user's terminal, without a service.

The readers of corpora import torch, so they are imported only when a command runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from eigensweep.client.answers.tables import Table
from eigensweep.client.spec_file import InputError
from eigensweep.command.frame import FAILURE, Call, FailedError, command, read_settings
from eigensweep.search_spaces.labels import say_count

if TYPE_CHECKING:
    from eigensweep.corpora.fetching import OnProgress
    from eigensweep.tasks.corpora import KnownCorpus

Cell = str | int | None
CorpusRow = dict[str, Cell]
"""What is said about a corpus: corpus, state, bytes, licence, where, title, problem."""

Names = Annotated[list[str] | None, typer.Argument(metavar="CORPUS", help="Corpora; default: all.")]
Wanted = Annotated[list[str], typer.Argument(metavar="CORPUS", help="Corpora, such as mnist.")]
Source = Annotated[Path, typer.Argument(metavar="PATH", help="A file, a folder or an archive.")]

data = typer.Typer(
    name="data",
    help="List, fetch, import and verify corpora in the folder EIGENSWEEP_DATA_ROOT.",
    no_args_is_help=True,
)


@command(data, "list", asks=False)
def list_corpora(call: Call) -> None:
    """List the corpora: state, size, licence and place. Does not read the files."""
    root = read_settings().corpora
    rows = [_inspect(corpus, root, thorough=False) for corpus in _load_corpora(root).values()]
    _show(call, rows, ("corpus", "state", "bytes", "licence", "where", "title"))


@command(data, asks=False)
def verify(call: Call, names: Names = None) -> None:
    """Read corpora and compare them with their digests."""
    root = read_settings().corpora
    known = _choose(names, root) if names else list(_load_corpora(root).values())
    rows = [_inspect(corpus, root, thorough=True) for corpus in known]
    _show(call, rows, ("corpus", "state", "bytes", "where"), is_named=bool(names))
    states = {row["state"] for row in rows}
    if states == {"missing"} and not names:
        raise FailedError(f"nothing to verify in {root}; `eigensweep data fetch` gets a corpus")
    if "damaged" in states or (names and "missing" in states):
        raise typer.Exit(FAILURE)


@command(data, asks=False)
def fetch(call: Call, names: Wanted) -> None:
    """Download corpora from where they are published, and check their digests.

    A download that broke off is resumed. For a licensed corpus, print how to get it instead.
    """
    from eigensweep.corpora.fetching import FetchError
    from eigensweep.corpora.fetching import fetch as download_corpus
    from eigensweep.corpora.importing import UnwritableError

    root = read_settings().corpora
    corpora, done = _choose(names, root), list[CorpusRow]()
    for corpus in corpora:
        if not corpus.ways:
            how = corpus.how or "it consists of your own recordings"
            raise FailedError(f"{corpus.name} is never downloaded: {how}. The data root is {root}")
    for corpus in corpora:
        typer.echo(f"{corpus.name}: {corpus.title}; {corpus.licence}", err=call.as_json)
        try:
            with _show_downloads() as on_progress:
                copied = download_corpus(corpus, root, on_progress)
        except (FetchError, UnwritableError) as error:
            raise FailedError(str(error)) from error
        place, files = str(corpus.find(root)), say_count(len(copied), "file")
        words = f": {files}, checked, in {place}" if copied else f" is complete in {place} already"
        typer.echo(f"{corpus.name}{words}", err=call.as_json)
        done.append({"corpus": corpus.name, "where": place, "files": len(copied)})
    call.tell(done, lambda _: None)


@command(data, "import", asks=False)
def import_path(call: Call, path: Source) -> None:
    """Copy corpora out of a file, a folder or an archive; files are recognised by their digests."""
    from eigensweep.corpora.importing import Importer, UnwritableError

    root = read_settings().corpora
    importer = Importer(root, _load_corpora(root).values())
    try:
        importer.take(path)
    except UnwritableError as error:
        raise FailedError(str(error)) from error
    except OSError as error:
        raise InputError(f"{error.filename or path}: {error.strerror or error}") from error
    say = partial(typer.echo, err=call.as_json)
    folders = [Path(place).parent for place, _ in importer.copied]
    for folder in dict.fromkeys(folders):
        say(f"copied into {folder}: {say_count(folders.count(folder), 'file')}")
    if importer.kept:
        say(f"in place already: {say_count(len(importer.kept), 'file')}")
    for words in importer.refused:
        typer.echo(f"not copied: {words}", err=True)
    if not importer.copied and not importer.kept:
        names = ", ".join(_find_importable(root))
        raise FailedError(f"{path} holds no file of the corpora {names}")
    for corpus in _load_corpora(root).values():
        problem = _inspect(corpus, root, thorough=False)["problem"]
        if problem is not None and root / corpus.folder in folders:
            say(f"not complete: {problem}")
    copied = [place for place, _ in importer.copied]
    done = {"copied": copied, "kept": importer.kept, "refused": importer.refused}
    call.tell(done, lambda _: None)
    if importer.refused:
        raise typer.Exit(FAILURE)


def _load_corpora(root: Path) -> dict[str, KnownCorpus]:
    from eigensweep.tasks import corpora

    try:
        return corpora.all_under(root)
    except OSError as error:  # a manifest cannot be read
        raise FailedError(f"{error.filename or root}: {error.strerror or error}") from error


def _find_importable(root: Path) -> list[str]:
    return [name for name, corpus in _load_corpora(root).items() if corpus.contents is not None]


def _choose(names: list[str], root: Path) -> list[KnownCorpus]:
    known = _load_corpora(root)
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise InputError(f"there is no corpus '{name}'; there are {', '.join(known)}{hint}")
    return [known[name] for name in dict.fromkeys(names)]


def _inspect(corpus: KnownCorpus, root: Path, thorough: bool) -> CorpusRow:
    """Return a row about a corpus; its state is `present`, `missing` or `damaged`."""
    from eigensweep.tasks.corpus import CorpusMismatchError, CorpusMissingError

    state, problem, where = "present", None, str(root / corpus.folder)
    try:
        where = str(corpus.find(root))
        if thorough:
            corpus.verify(root)
    except CorpusMismatchError as error:
        state, problem = "damaged", str(error)
    except CorpusMissingError as error:
        state, problem, where = "missing", str(error), corpus.page
    except OSError as error:
        state, problem = "damaged", f"{error.filename}: {error.strerror}"
    return {
        "corpus": corpus.name,
        "state": state,
        "bytes": corpus.size,
        "licence": corpus.licence,
        "where": where,
        "title": corpus.title,
        "problem": problem,
    }


def _show(
    call: Call, rows: list[CorpusRow], heads: tuple[str, ...], *, is_named: bool = False
) -> None:
    call.tell(
        rows, lambda _: Table(heads, ([_format_count(row[head]) for head in heads] for row in rows))
    )
    for row in rows if not call.as_json else ():
        if row["problem"] and (is_named or row["state"] == "damaged"):
            typer.echo(f"{row['corpus']} is {row['state']}: {row['problem']}", err=True)


def _format_count(value: Cell) -> Cell:
    return f"{value:,}" if isinstance(value, int) else value


@contextmanager
def _show_downloads() -> Iterator[OnProgress]:
    """Lend a function that shows downloads: bars on a terminal, else a line for each."""
    screen = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    quiet = not screen.is_terminal
    with Progress(*columns, TransferSpeedColumn(), console=screen, disable=quiet) as progress:
        tasks: dict[str, TaskID] = {}

        def on_progress(url: str, have: int, expected: int | None) -> None:
            if url not in tasks:
                tasks[url] = progress.add_task(url.rpartition("/")[2], total=expected)
                if quiet:
                    typer.echo(f"downloading {url}", err=True)
            progress.update(tasks[url], completed=have, total=expected)

        yield on_progress

"""`eigensweep data`: the corpora under the data root, without the service.

torch is imported with the corpora's readers, and so only once a command has begun.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from eigensweep.service.command import terminal

if TYPE_CHECKING:
    from eigensweep.tasks.corpora import KnownCorpus

FAILURE, BAD_INPUT = 1, 2
AsJson = Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[CORPUS]...", help="Default: all.")]
Wanted = Annotated[list[str], typer.Argument(metavar="CORPUS...", help="Such as mnist.")]
Source = Annotated[Path, typer.Argument(metavar="PATH", help="A file, a folder or an archive.")]

data = typer.Typer(
    name="data",
    help="Corpora: what is there, fetching, checking. EIGENSWEEP_DATA_ROOT names their folder.",
    no_args_is_help=True,
)


@data.command("list")
def list_corpora(as_json: AsJson = False) -> None:
    """List the corpora: what is there, how large, on which terms, where. Reads no contents."""
    root = _data_root()
    rows = [_looked_at(corpus, root, thorough=False) for corpus in _known(root).values()]
    _show(rows, ("corpus", "state", "bytes", "licence", "where", "title"), as_json)


@data.command()
def verify(names: Names = None, as_json: AsJson = False) -> None:
    """Read all corpora that are there, or those named, and hold them against their digests."""
    root = _data_root()
    known = _chosen(names, root) if names else list(_known(root).values())
    rows = [_looked_at(corpus, root, thorough=True) for corpus in known]
    _show(rows, ("corpus", "state", "bytes", "where"), as_json)
    states = [row["state"] for row in rows]
    if set(states) == {"missing"}:
        _end(f"nothing to verify in {root}; `eigensweep data fetch` gets a corpus", FAILURE)
    if "damaged" in states or (names and "missing" in states):
        raise typer.Exit(FAILURE)


@data.command()
def fetch(names: Wanted) -> None:
    """Download corpora from where they are published, and put them in place once checked.

    What broke off is taken up again. Licensed corpora are not downloaded: it is said how to get
    them.
    """
    from eigensweep.service.corpora.fetching import FetchError
    from eigensweep.service.corpora.fetching import fetch as bring
    from eigensweep.service.corpora.importing import UnwritableError

    root = _data_root()
    corpora = _chosen(names, root)
    for corpus in corpora:
        if not corpus.ways:
            how = corpus.how or "its recordings are your own"
            _end(f"{corpus.name} is never downloaded: {how}. The data root is {root}", FAILURE)
    for corpus in corpora:
        typer.echo(f"{corpus.name}: {corpus.title}; {corpus.licence}")
        try:
            with _bar() as told:
                copied = bring(corpus, root, told)
        except (FetchError, UnwritableError) as error:
            _end(str(error), FAILURE)
        if copied:
            typer.echo(f"{corpus.name}: checked, {len(copied):,} files in {root / corpus.folder}")
        else:
            typer.echo(f"{corpus.name} is in {root} already, as it was published")


@data.command("import")
def import_path(path: Source) -> None:
    """Copy the corpora that a file, a folder or an archive holds; they are known by digests."""
    from eigensweep.service.corpora.importing import Importer, UnwritableError

    root = _data_root()
    importer = Importer(root, _known(root).values())
    try:
        importer.take(path)
    except UnwritableError as error:
        _end(str(error), FAILURE)
    except OSError as error:
        _end(f"{error.filename or path}: {error.strerror or error}", BAD_INPUT)
    folders = [Path(place).parent for place, _ in importer.copied]
    for folder in dict.fromkeys(folders):
        typer.echo(f"copied into {folder}: {folders.count(folder):,} files")
    if importer.kept:
        typer.echo(f"there already: {len(importer.kept):,} files")
    for words in importer.refused:
        typer.echo(f"not taken: {words}", err=True)
    if not importer.copied and not importer.kept:
        _end(f"{path} holds no file that belongs to {', '.join(_recognised(root))}", FAILURE)
    for corpus in _known(root).values():
        problem = _looked_at(corpus, root, thorough=False)["problem"]
        if problem is not None and root / corpus.folder in folders:
            typer.echo(f"not complete: {problem}")
    if importer.refused:
        raise typer.Exit(FAILURE)


def _data_root() -> Path:
    from pydantic import ValidationError

    from eigensweep.service.settings import Settings

    try:
        return Settings().corpora
    except ValidationError as error:
        first = error.errors()[0]
        name = "_".join(str(part) for part in first["loc"]).upper()
        _end(f"EIGENSWEEP_{name}: {first['msg'].removeprefix('Value error, ')}", BAD_INPUT)


def _known(root: Path) -> dict[str, KnownCorpus]:
    from eigensweep.tasks import corpora

    try:
        return corpora.all_under(root)
    except OSError as error:  # a manifest that may not be read
        _end(f"{error.filename or root}: {error.strerror or error}", FAILURE)


def _recognised(root: Path) -> list[str]:
    return [name for name, corpus in _known(root).items() if corpus.contents is not None]


def _chosen(names: list[str], root: Path) -> list[KnownCorpus]:
    known = _known(root)
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            _end(f"there is no corpus '{name}'; there are {', '.join(known)}{hint}", BAD_INPUT)
    return [known[name] for name in dict.fromkeys(names)]


def _looked_at(corpus: KnownCorpus, root: Path, thorough: bool) -> dict[str, Any]:
    """Return a corpus as a row: what it is, and whether it is present, missing or damaged."""
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


def _show(rows: list[dict[str, Any]], heads: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    texts = [[_counted(row[head]) for head in heads] for row in rows]
    terminal.show_rows(heads, texts, terminal.console())
    for row in rows:
        if row["state"] == "damaged":
            typer.echo(f"{row['corpus']} is damaged: {row['problem']}", err=True)


def _counted(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else value


@contextmanager
def _bar() -> Iterator[Any]:
    """Lend what shows downloads: bars on a terminal, else a line for each that begins."""
    screen = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    quiet = not screen.is_terminal
    with Progress(*columns, TransferSpeedColumn(), console=screen, disable=quiet) as progress:
        begun: dict[str, Any] = {}

        def told(url: str, have: int, expected: int | None) -> None:
            if url not in begun:
                begun[url] = progress.add_task(url.rpartition("/")[2], total=expected)
                if quiet:
                    typer.echo(f"downloading {url}", err=True)
            progress.update(begun[url], completed=have, total=expected)

        yield told


def _end(words: str, code: int) -> NoReturn:
    typer.echo(f"error: {words}", err=True)
    raise typer.Exit(code)

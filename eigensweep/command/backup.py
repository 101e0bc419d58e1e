"""`eigensweep backup` and `restore`: a home folder in one file, and the way back.

Runs in a user's terminal, beside a service that may work in the same home.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.filesize import decimal

from eigensweep.command.frame import Call, FailedError, read_settings
from eigensweep.search_spaces.labels import say_count

TITLE = "It did not work"


@contextmanager
def _failures(call: Call, what: str) -> Iterator[None]:
    """Say in words why a block cannot do its work; `what` has become of it then."""
    from sqlalchemy.exc import SQLAlchemyError

    from eigensweep.service.process.backup import BackupError
    from eigensweep.service.settings import StartError
    from eigensweep.store.places.durable_files import StorageError

    try:
        yield
    except BackupError as error:
        call.fail(str(error), TITLE)
    except (OSError, sqlite3.Error, SQLAlchemyError, StartError, StorageError) as error:
        raise FailedError(f"{what}: {error}") from error


def back_up(
    call: Call,
    file: Annotated[
        Path,
        typer.Argument(help="A new file, such as monday.tar.gz, or a folder, which names it."),
    ],
    keep: Annotated[
        int | None,
        typer.Option(
            min=1, help="How many backups of this home stay in a folder; older ones are removed."
        ),
    ] = None,
) -> None:
    """Write the home folder into one file, also while the service works; EIGENSWEEP_HOME names it.

    The record and the store are in it wherever they are: EIGENSWEEP_DATABASE_URL and
    EIGENSWEEP_STORAGE name them. The file holds digests of tokens, addresses of webhooks and the
    audit log: keep it as safe as the home folder. Only you can read it.
    """
    from eigensweep.common.private_folders import private_umask
    from eigensweep.service.process.backup import back_up, name_by_time, remove_older

    folder, removed = file.expanduser().absolute(), list[Path]()
    if keep is not None and not folder.is_dir():
        call.fail(f"--keep is for a folder that is there (`mkdir`); {file} is none", TITLE)
    with _failures(call, "no backup was made"), private_umask():
        settings = read_settings()
        if folder.is_dir():
            file = name_by_time(folder, settings)
        manifest = back_up(settings, file.expanduser().absolute())
        if keep is not None:
            removed = remove_older(file, settings.home, keep)
    lines = [
        f"{say_count(len(manifest.files), 'file')}, {decimal(manifest.size)}: {file}",
        *(f"removed: {path}" for path in removed),
        *(f"left out: {words}" for words in manifest.left_out),
        f"to go on from it: eigensweep restore {quote(str(file))} --home FOLDER",
    ]
    told = {"file": str(file), "removed": [str(path) for path in removed]}
    call.tell(asdict(manifest) | told, lambda _: "\n".join(lines))


def restore(
    call: Call,
    file: Annotated[Path, typer.Argument(help="A file that `eigensweep backup` made.")],
    home: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A new home folder, or an empty one.")
    ],
    database_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An empty database of PostgreSQL; default: SQLite in the home."
        ),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="An empty folder, s3://bucket/prefix or gs://bucket/prefix, for checkpoints and "
            "curves; default: in the home.",
        ),
    ] = None,
) -> None:
    """Make a home folder of a backup. It is there as a whole, or not at all."""
    from eigensweep.common.private_folders import private_umask
    from eigensweep.service.process.backup import restore

    if not file.exists() or file.is_dir():  # a pipe may give it, too
        call.fail(f"there is no file {file}", TITLE)
    told = {"HOME": str(home)}
    with _failures(call, "nothing was restored"), private_umask():
        if storage is not None:
            told["STORAGE"] = storage = read_settings(storage=storage).storage_folder
        if database_url is not None:
            database_url = read_settings(home=home, database_url=database_url).database
        manifest = restore(file, home, database_url, storage)
    settings = "".join(f"EIGENSWEEP_{name}={quote(str(value))} " for name, value in told.items())
    settings += "EIGENSWEEP_DATABASE_URL=... " if database_url else ""
    lines = [
        f"{say_count(len(manifest.files), 'file')}, {decimal(manifest.size)}: {home}",
        *(f"left out: {words}" for words in manifest.left_out),
        f"start it: {settings}eigensweep serve",
    ]
    call.tell(asdict(manifest) | {"home": str(home)}, lambda _: "\n".join(lines))

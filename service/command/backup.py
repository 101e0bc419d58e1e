"""`eigensweep backup` and `restore`: a home folder in one file, and the way back.

Runs in a user's terminal, beside a service that may work in the same home.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from pydantic import ValidationError
from rich.filesize import decimal

from eigensweep.search_spaces.labels import say_count
from eigensweep.service.command.connecting import fail
from eigensweep.service.command.options import BAD_INPUT, FAILURE, AsJson


def back_up(
    file: Annotated[Path, typer.Argument(help="A new file, such as monday.tar.gz.")],
    as_json: AsJson = False,
) -> None:
    """Write the home folder into one file, also while the service works; EIGENSWEEP_HOME names it.

    The file holds digests of tokens, addresses of webhooks and the audit log: keep it as safe as
    the home folder. Only you can read it.
    """
    from eigensweep.private_folders import private_umask
    from eigensweep.service.process.backup import BackupError, back_up
    from eigensweep.service.settings import Settings
    from eigensweep.workers.shared.durable_files import StorageError

    try:
        with private_umask():
            manifest = back_up(Settings(), file.expanduser().absolute())
    except (BackupError, ValidationError) as error:
        _fail(str(error), as_json, BAD_INPUT)
    except (OSError, sqlite3.Error, StorageError) as error:
        _fail(f"no backup was made: {error}", as_json, FAILURE)
    if as_json:
        typer.echo(json.dumps(asdict(manifest) | {"file": str(file)}, indent=2))
        return
    typer.echo(f"{say_count(len(manifest.files), 'file')}, {decimal(manifest.size)}: {file}")
    for words in manifest.left_out:
        typer.echo(f"left out: {words}")
    typer.echo(f"to go on from it: eigensweep restore {file} --home FOLDER")


def restore(
    file: Annotated[Path, typer.Argument(help="A file that `eigensweep backup` made.")],
    home: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A new home folder, or an empty one.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a home folder of a backup. It is there as a whole, or not at all."""
    from eigensweep.private_folders import private_umask
    from eigensweep.service.process.backup import BackupError, restore

    try:
        with private_umask():
            manifest = restore(file, home)
    except BackupError as error:
        _fail(str(error), as_json, BAD_INPUT)
    except (OSError, sqlite3.Error) as error:
        _fail(f"nothing was restored: {error}", as_json, FAILURE)
    if as_json:
        typer.echo(json.dumps(asdict(manifest) | {"home": str(home)}, indent=2))
        return
    typer.echo(f"{say_count(len(manifest.files), 'file')}, {decimal(manifest.size)}: {home}")
    for words in manifest.left_out:
        typer.echo(f"left out: {words}")
    typer.echo(f"start it: EIGENSWEEP_HOME={home} eigensweep serve")


def _fail(words: str, as_json: bool, code: int) -> NoReturn:
    fail(f"error: {words}", {"title": "It did not work", "detail": words}, as_json, code)

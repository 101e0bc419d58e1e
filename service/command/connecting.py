"""How commands reach the service, and how they end when it refuses or is away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from eigensweep.service.client import Client, RefusedError, ServiceAwayError
from eigensweep.service.client.spec_file import InputError
from eigensweep.service.command.options import BAD_INPUT, FAILURE


def _inherit(context: typer.Context, url: str | None) -> str | None:
    """Return the address given to the command, else the one given before the command."""
    return url or context.find_root().params.get("url")


Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        callback=_inherit,
        help="Address of the service; default: EIGENSWEEP_URL, else this machine's service.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="File with your token, which only you can read; default: EIGENSWEEP_TOKEN_FILE, "
        "else the token in EIGENSWEEP_TOKEN.",
    ),
]


@contextmanager
def connect(url: str | None, as_json: bool = False) -> Iterator[Client]:
    """Lend a client; an error becomes a message on standard error and an exit code."""
    try:
        with Client(url) as client:
            yield client
    except InputError as error:
        problem = {"title": "The input cannot be read", "detail": str(error)}
        fail(f"error: {error}", problem, as_json, BAD_INPUT)
    except RefusedError as error:
        words = f"error: {error}"
        if error.kind in ("unauthorized", "scope-too-small"):
            words += "\n  the token is read from EIGENSWEEP_TOKEN, or from the file of --token-file"
        code = BAD_INPUT if 400 <= error.status < 500 else FAILURE
        fail(words, {"status": error.status, **error.problem}, as_json, code)
    except ServiceAwayError as error:
        words = f"error: {error}\n  start one with `eigensweep serve`, or give its address: --url"
        fail(words, {"title": "The service is away", "detail": str(error)}, as_json, FAILURE)
    except OSError as error:
        if error.filename is None:  # not a file of `--out`
            raise
        words = f"{error.filename}: {error.strerror}"
        problem = {"title": "A file cannot be written", "detail": words}
        fail(f"error: {words}", problem, as_json, BAD_INPUT)


def fail(words: str, problem: Mapping[str, Any], as_json: bool, code: int) -> NoReturn:
    """End a command with a message on standard error, and this exit code."""
    typer.echo(json.dumps(problem) if as_json else words, err=True)
    raise typer.Exit(code)

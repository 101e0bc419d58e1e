"""The frame of all commands: how they reach the service, print what it answers, and fail."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    NoReturn,
    ParamSpec,
    get_type_hints,
)

import typer
from typer.core import TyperCommand, TyperGroup

from eigensweep.client import Client, RefusedError, ServiceAwayError
from eigensweep.client.answers.answers import Answer
from eigensweep.client.answers.tables import Table
from eigensweep.client.connection import FOREIGN
from eigensweep.client.spec_file import InputError
from eigensweep.command import terminal

if TYPE_CHECKING:
    from eigensweep.service.settings import Settings

FAILURE, BAD_INPUT, INTERRUPTED = 1, 2, 130
USAGE_ERROR: Any = typer.BadParameter.__base__
"""What typer raises where words of a command line cannot be read; it has no public name."""
SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

EXTRAS: Final = {
    "worker": "filelock numpy pythonjsonlogger ray scipy torch",
    "notebook": "matplotlib pandas",
    "postgres": "psycopg",
    "service": "alembic anyio cmaes fastapi grpc h11 jinja2 limits markdown_it mlflow optuna "
    "packaging prometheus_client pydantic_settings sqlalchemy starlette uvicorn",
}
"""Modules that an installation of the command line alone lacks, by the extra that brings them."""


def find_extra(module: str | None) -> str | None:
    """Return the extra of Eigensweep that brings a module, None if none does."""
    top = (module or "").partition(".")[0]
    return next((extra for extra, modules in EXTRAS.items() if top in modules.split()), None)


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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
P = ParamSpec("P")
Work = Callable[Concatenate["Call", P], None]
"""What a command does."""
Show = Callable[[Any], str | Table | None]
"""Returns what a person is shown of an answer, or prints it."""


class _Command(TyperCommand):
    """A command that names its options for experiments where one is given without an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ways = [
            f"{each.opts[0]} {each.metavar}"
            for each in self.params
            if each.param_type_name == "option" and (each.metavar or "").startswith("EXPERIMENT")
        ]
        ctx.allow_extra_args = bool(ways)
        extra = super().parse_args(ctx, args)
        if extra and not ctx.resilient_parsing:
            ctx.fail(f"Got unexpected extra argument ({extra[0]}): write {' or '.join(ways)}")
        return extra


class App(TyperGroup):
    """The command line. What cannot be read of it is told in a line, as other mistakes are."""

    def make_context(self, *args: Any, **more: Any) -> Any:
        with _usage_errors():
            return super().make_context(*args, **more)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors():  # those of all commands below it
            return super().invoke(ctx)


@contextmanager
def _usage_errors() -> Iterator[None]:
    try:
        yield
    except USAGE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # shows the help
            raise
        words = " ".join(error.format_message().split())
        hint = f"  see `{error.ctx.command_path} --help`" if error.ctx else ""
        typer.echo(f"error: {words}\n{hint}".rstrip(), err=True)
        raise typer.Exit(BAD_INPUT) from None


class FailedError(Exception):
    """A command cannot do its work; the message says why."""


class Call:
    """One call of a command: the service that it asks, and what it prints."""

    def __init__(self, url: str | None = None, as_json: bool = False) -> None:
        self.url = url
        self.as_json = as_json
        self.screen = terminal.console()
        self._open = ExitStack()

    @cached_property
    def client(self) -> Client:
        """A client of the service."""
        return self._open.enter_context(Client(self.url))

    @cached_property
    def near(self) -> Client:
        """The same; if no address was given and no service runs, this process answers instead."""
        if not self.has_address:
            try:
                self.client.get("/healthz")
            except ServiceAwayError:
                from eigensweep.command.local import LocalClient

                typer.echo("no service answers; this installation does", err=True)
                return LocalClient()
        return self.client

    @property
    def has_address(self) -> bool:
        """Whether the service's address was given."""
        return bool(self.url or os.environ.get("EIGENSWEEP_URL"))

    def tell(self, content: Any, show: Show | None = None) -> None:
        """Print JSON for programs; for a person what `show` has of it, or the answer itself."""
        if self.as_json:
            typer.echo(json.dumps(content, indent=2))
            return
        shown = content if show is None else show(content)
        if isinstance(shown, Answer | Table):
            shown.show(self.screen)
        elif shown is not None:
            typer.echo(shown)

    def fail(self, words: str, title: str, code: int = BAD_INPUT) -> NoReturn:
        """End the command with an error and this exit code."""
        self._end(f"error: {words}", {"title": title, "detail": words}, code)

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Make a message on standard error, and an exit code, of what can go wrong."""
        try:
            with self._open:
                yield
        except InputError as error:
            self.fail(str(error), "The input cannot be read")
        except FailedError as error:
            self.fail(str(error), "It did not work", FAILURE)
        except RefusedError as error:
            self._refuse(error)
        except (AttributeError, LookupError, TypeError):  # a bug, or no answer of ours
            if self._asks_another():
                self._refuse(RefusedError(200, FOREIGN))
            raise
        except ServiceAwayError as error:
            words = f"error: {error}\n  start one with `eigensweep serve`, or give its address: "
            problem = {"title": "The service is away", "detail": str(error)}
            self._end(f"{words}--url", problem, FAILURE)
        except OSError as error:
            if error.filename is None:  # not a file of `--out`
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                self.fail(f"nothing can be written: {error.strerror}", "No space left", FAILURE)
            self.fail(f"{error.filename}: {error.strerror}", "A file cannot be written")

    def _asks_another(self) -> bool:
        """Return whether something else than Eigensweep answers at the service's address."""
        if "client" not in vars(self):
            return False
        try:
            with Client(self.url) as client:
                return client.get("/healthz") != {"status": "alive"}
        except RefusedError:
            return True
        except ServiceAwayError:
            return False

    def _refuse(self, error: RefusedError) -> NoReturn:
        words = f"error: {error}"
        if error.kind in ("unauthorized", "scope-too-small"):
            words += (
                "\n  the token is read from the file of --token-file or "
                "EIGENSWEEP_TOKEN_FILE, else from EIGENSWEEP_TOKEN"
            )
        code = BAD_INPUT if 400 <= error.status < 500 else FAILURE
        self._end(words, {"status": error.status, **error.problem}, code)

    def _end(self, words: str, problem: Mapping[str, object], code: int) -> NoReturn:
        typer.echo(json.dumps(problem) if self.as_json else words, err=True)
        raise typer.Exit(code)


def command(
    app: typer.Typer, name: str | None = None, *, asks: bool = True, **options: Any
) -> Callable[[Work[P]], Work[P]]:
    """Return a decorator that adds a command to `app`.

    A command is a function of a `Call` and its own options. It has `--json` besides, and `--url`
    if it `asks` the service. `options` are typer's.
    """

    def add(work: Work[P]) -> Work[P]:
        hints = get_type_hints(work, include_extras=True)
        first, *own = inspect.signature(work).parameters.values()
        more = {"url": Url, "as_json": AsJson} if asks else {"as_json": AsJson}
        defaults = {"url": None, "as_json": False}
        kind = inspect.Parameter.KEYWORD_ONLY
        parameters = [each.replace(kind=kind, annotation=hints[each.name]) for each in own]
        parameters += [
            inspect.Parameter(each, kind, default=defaults[each], annotation=hint)
            for each, hint in more.items()
        ]
        del hints[first.name]

        do: Callable[..., None] = work

        def run(url: str | None = None, as_json: bool = False, **words: Any) -> None:
            call = Call(url, as_json)
            with call.failures():
                do(call, **words)

        run.__name__, run.__doc__ = work.__name__, work.__doc__
        run.__annotations__ = hints | more
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name, cls=_Command, **options)(run)
        return work

    return add


def read_settings(**given: Any) -> Settings:
    """Return the settings of this machine's service; those that are `given` come first.

    Raises:
        InputError: if they are wrong.
    """
    from pydantic import ValidationError

    from eigensweep.service.settings import Settings, explain_settings

    try:
        return Settings(**given)
    except ValidationError as error:
        raise InputError("; ".join(explain_settings(error))) from error


def make_folder(folder: Path) -> None:
    """Make the folder of files that are written later, after long work.

    Raises:
        OSError: if it cannot be made, or nothing can be written into it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, "nothing can be written there", str(folder))


def read_seconds(text: str, *others: str) -> int:
    """Return how long `30d` is, in seconds; `others` are the words that work besides.

    Raises:
        BadParameter: if it is no time.
    """
    found = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if found is None:
        words = "".join(f", or {word}" for word in others)
        raise typer.BadParameter(f"write a number with m, h, d or w, such as 12h or 30d{words}")
    return int(found[1]) * SECONDS[found[2]]

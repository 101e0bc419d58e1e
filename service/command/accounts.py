"""`eigensweep token`, `user` and `audit`: who may do what, and who did what.

Runs in a user's terminal. Where an address is given, the service is asked, which needs a token with
scope `admin`. Else the work is done in the database itself, by who owns it: so the first token is
made, whether the service runs or not.
"""

from __future__ import annotations

import getpass
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol
from urllib.parse import quote

import typer

from eigensweep.service.client import Client
from eigensweep.service.client.connection import JsonObject
from eigensweep.service.command import terminal
from eigensweep.service.command.connecting import Url, connect, fail
from eigensweep.service.command.options import BAD_INPUT, FAILURE, AsJson, read_seconds

if TYPE_CHECKING:
    from pydantic import BaseModel

ScopeName = Literal["read", "submit", "admin"]

UserName = Annotated[str, typer.Argument(metavar="USER", help="A user's name.")]
Count = Annotated[int | None, typer.Option(min=-1, help="Experiments that are not over at once.")]
Trials = Annotated[int | None, typer.Option(min=-1, help="Trials of an experiment.")]
Bytes = Annotated[int | None, typer.Option(min=-1, help="Bytes of a spec.")]

token = typer.Typer(
    name="token",
    help="Make, list and revoke tokens: at the service of --url, else in the database itself.",
    no_args_is_help=True,
)
user = typer.Typer(
    name="user",
    help="Make, list and remove users, and set their quotas.",
    no_args_is_help=True,
)


class Door(Protocol):
    """Users, tokens and the audit log, as the API answers about them."""

    def create_token(self, user: str, scope: ScopeName, seconds: int | None) -> JsonObject: ...
    def list_tokens(self, user: str | None) -> list[JsonObject]: ...
    def revoke_token(self, id: str) -> JsonObject: ...
    def create_user(self, name: str, quotas: JsonObject) -> JsonObject: ...
    def list_users(self) -> list[JsonObject]: ...
    def change_quotas(self, name: str, quotas: JsonObject) -> JsonObject: ...
    def remove_user(self, name: str) -> JsonObject: ...
    def list_audit(
        self, user: str | None, refused: bool | None, limit: int
    ) -> list[JsonObject]: ...


class ThroughService:
    """The same, by requests to the service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create_token(self, user: str, scope: ScopeName, seconds: int | None) -> JsonObject:
        body = {"user": user, "scope": scope, "seconds": seconds}
        return self._client.post("/v1/tokens", body)

    def list_tokens(self, user: str | None) -> list[JsonObject]:
        return self._client.get("/v1/tokens", user=user)["items"]

    def revoke_token(self, id: str) -> JsonObject:
        return self._client.post(f"/v1/tokens/{quote(id, safe='')}/revoke")

    def create_user(self, name: str, quotas: JsonObject) -> JsonObject:
        return self._client.post("/v1/users", {"name": name, "quotas": quotas})

    def list_users(self) -> list[JsonObject]:
        return self._client.get("/v1/users")["items"]

    def change_quotas(self, name: str, quotas: JsonObject) -> JsonObject:
        return self._client.post(f"/v1/users/{quote(name, safe='')}/quotas", quotas)

    def remove_user(self, name: str) -> JsonObject:
        return self._client.post(f"/v1/users/{quote(name, safe='')}/remove")

    def list_audit(self, user: str | None, refused: bool | None, limit: int) -> list[JsonObject]:
        wish = None if refused is None else str(refused).lower()
        return self._client.items("/v1/audit", limit, user=user, refused=wish)


class AtDatabase:
    """The same, in the database of the settings. What is done is in the audit log as well."""

    def __init__(self) -> None:
        from eigensweep.private_folders import make_private, private_umask
        from eigensweep.service.record.accounts import Accounts
        from eigensweep.service.record.audit import Audit
        from eigensweep.service.record.migrations import migrate
        from eigensweep.service.settings import Settings

        settings = Settings()
        with private_umask():
            if settings.database_url is None:
                make_private(settings.home)
            migrate(settings.database)
        self._accounts = Accounts(settings.database)
        self._audit = Audit(settings.database, settings.audit_entries)

    def create_token(self, user: str, scope: ScopeName, seconds: int | None) -> JsonObject:
        made = self._accounts.create_token(user, scope, seconds)
        return self._tell("token create", made, f"token {made.id} of user {user}, scope {scope}")

    def list_tokens(self, user: str | None) -> list[JsonObject]:
        return list(map(_to_json, self._accounts.list_tokens(user)))

    def revoke_token(self, id: str) -> JsonObject:
        made = self._accounts.revoke_token(id)
        return self._tell("token revoke", made, f"token {made.id} of user {made.user} revoked")

    def create_user(self, name: str, quotas: JsonObject) -> JsonObject:
        from eigensweep.service.record.accounts import Quotas

        made = self._accounts.create_user(name, Quotas(**quotas))
        return self._tell("user create", made, f"user {made.name}: {made.quotas}")

    def list_users(self) -> list[JsonObject]:
        return list(map(_to_json, self._accounts.list_users()))

    def change_quotas(self, name: str, quotas: JsonObject) -> JsonObject:
        from eigensweep.service.record.accounts import Quotas

        changed = self._accounts.change_quotas(name, Quotas(**quotas))
        return self._tell("user quota", changed, f"user {changed.name}: {changed.quotas}")

    def remove_user(self, name: str) -> JsonObject:
        removed = self._accounts.remove_user(name)
        return self._tell("user remove", removed, f"user {removed.name} removed")

    def list_audit(self, user: str | None, refused: bool | None, limit: int) -> list[JsonObject]:
        return list(map(_to_json, self._audit.list(user=user, refused=refused, limit=limit)))

    def _tell(self, command: str, answer: BaseModel, words: str) -> JsonObject:
        self._audit.add(
            f"eigensweep {command}",
            user="operator",
            token=None,
            address=None,
            refused=False,
            detail=f"{words}, by {getpass.getuser()} at the database",
        )
        return _to_json(answer)


def _to_json(answer: BaseModel) -> JsonObject:
    return answer.model_dump(mode="json")


@contextmanager
def _open(url: str | None, as_json: bool) -> Iterator[Door]:
    """Lend the service where an address is given, else the database."""
    if url or os.environ.get("EIGENSWEEP_URL"):
        with connect(url, as_json) as client:
            yield ThroughService(client)
        return
    from pydantic import ValidationError
    from sqlalchemy.exc import SQLAlchemyError

    from eigensweep.service.record.errors import ConflictError, NotAllowedError, NotFoundError
    from eigensweep.service.settings import StartError

    try:
        yield AtDatabase()
    except (ConflictError, NotAllowedError, NotFoundError) as error:
        _end(str(error), as_json, BAD_INPUT)
    except ValidationError as error:
        _end("; ".join(one["msg"] for one in error.errors()), as_json, BAD_INPUT)
    except (StartError, SQLAlchemyError, OSError) as error:
        words = f"{error}; give the address of a service with --url to ask it instead"
        _end(words, as_json, FAILURE)


def _end(words: str, as_json: bool, code: int) -> None:
    fail(f"error: {words}", {"title": "This cannot be done", "detail": words}, as_json, code)


def _show(content: Any, show: Callable[[], None], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        show()


@token.command("create")
def create_token(
    of: Annotated[str, typer.Option("--user", help="Whose token; the user is made if need be.")],
    scope: Annotated[
        ScopeName,
        typer.Option(
            help="read: look at everything; submit: also post, and cancel what is one's own; "
            "admin: everything."
        ),
    ],
    expires: Annotated[
        str, typer.Option(help="How long it holds, such as 12h, 30d or 8w; never: for ever.")
    ] = "90d",
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it. It is printed once; only a digest of it is kept."""
    seconds = None if expires == "never" else read_seconds(expires, "never")
    with _open(url, as_json) as door:
        made = door.create_token(of, scope, seconds)

    def show() -> None:
        until = "for ever" if seconds is None else f"until {_moment(made['expires_at'])}"
        words = f"token {made['id']} of {made['user']}, scope {made['scope']}, holds {until}"
        typer.echo(f"{words}; it is not shown again:", err=True)
        typer.echo(made["token"])

    _show(made, show, as_json)


@token.command("list")
def list_tokens(
    of: Annotated[str | None, typer.Option("--user", help="Only tokens of this user.")] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the tokens, without their secrets, the newest first."""
    with _open(url, as_json) as door:
        found = door.list_tokens(of)
    heads = ("id", "user", "scope", "usable", "created", "expires", "revoked")
    rows = [
        (
            *(each["id"], each["user"], each["scope"], "yes" if each["usable"] else "no"),
            *map(_moment, (each["created_at"], each["expires_at"], each["revoked_at"])),
        )
        for each in found
    ]
    _show(found, lambda: terminal.show_rows(heads, rows, terminal.console()), as_json)


@token.command("revoke")
def revoke_token(
    id: Annotated[str, typer.Argument(metavar="ID", help="As the list has it.")],
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Let a token give nothing from now on."""
    with _open(url, as_json) as door:
        found = door.revoke_token(id)
    _show(found, lambda: typer.echo(f"token {id} of {found['user']} is revoked"), as_json)


@user.command("create")
def create_user(
    name: UserName,
    experiments: Count = None,
    trials: Trials = None,
    spec_bytes: Bytes = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Make a user, or bring one back who was removed. Quotas that are not given do not limit."""
    with _open(url, as_json) as door:
        found = door.create_user(name, _read_quotas(experiments, trials, spec_bytes))
    _show(found, lambda: _show_users([found]), as_json)


@user.command("list")
def list_users(url: Url = None, as_json: AsJson = False) -> None:
    """List the users and their quotas."""
    with _open(url, as_json) as door:
        found = door.list_users()
    _show(found, lambda: _show_users(found), as_json)


@user.command("quota")
def change_quotas(
    name: UserName,
    experiments: Count = None,
    trials: Trials = None,
    spec_bytes: Bytes = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Set the quotas that are given and leave the others; -1 is no limit."""
    with _open(url, as_json) as door:
        found = door.change_quotas(name, _read_quotas(experiments, trials, spec_bytes))
    _show(found, lambda: _show_users([found]), as_json)


@user.command("remove")
def remove_user(name: UserName, url: Url = None, as_json: AsJson = False) -> None:
    """Revoke a user's tokens, and refuse the user from now on. What the user posted stays."""
    with _open(url, as_json) as door:
        found = door.remove_user(name)
    _show(found, lambda: _show_users([found]), as_json)


def list_audit(
    of: Annotated[str | None, typer.Option("--user", help="Only entries of this user.")] = None,
    refused: Annotated[
        bool | None, typer.Option("--refused/--done", help="Only refusals, or only deeds.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of rows.")] = 50,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Show who did what, when and from where, and who was refused; the newest first."""
    with _open(url, as_json) as door:
        found = door.list_audit(of, refused, limit)
    heads = ("at", "user", "token", "address", "", "action", "detail")
    rows = [
        (
            _moment(each["at"]),
            *(each["user"], each["token"], each["address"]),
            "refused" if each["refused"] else "",
            *(each["action"], each["detail"]),
        )
        for each in found
    ]
    _show(found, lambda: terminal.show_rows(heads, rows, terminal.console()), as_json)


def _read_quotas(experiments: int | None, trials: int | None, spec_bytes: int | None) -> JsonObject:
    """Return the quotas that were given; -1 is no limit."""
    given = {"max_experiments": experiments, "max_trials": trials, "max_spec_bytes": spec_bytes}
    return {
        name: None if value == -1 else value for name, value in given.items() if value is not None
    }


def _show_users(users: list[JsonObject]) -> None:
    heads = ("user", "experiments", "trials", "spec bytes", "created", "removed")
    rows = [
        (
            each["name"],
            *each["quotas"].values(),
            *map(_moment, (each["created_at"], each["removed_at"])),
        )
        for each in users
    ]
    terminal.show_rows(heads, rows, terminal.console())


def _moment(text: str | None) -> str | None:
    """Return a time of the API as people write it, in UTC."""
    return None if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M}"

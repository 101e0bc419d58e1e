"""`eigensweep token`, `user` and `audit`: who may do what, and who did what.

Runs in a user's terminal. Where an address is given, the service is asked, which needs a token with
scope `admin`. Else this process answers with the service's own routes, on the database itself, for
who owns it: so the first token is made, whether the service runs or not.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, TypedDict
from urllib.parse import quote

import typer

from eigensweep.client import Client
from eigensweep.client.answers.tables import Table
from eigensweep.command.frame import Call, FailedError, command, read_seconds

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


@command(token, "create")
def create_token(
    call: Call,
    of: Annotated[str, typer.Option("--user", help="Whose token; the user is made if need be.")],
    scope: Annotated[
        ScopeName,
        typer.Option(
            help="read: look at everything; submit: also post, and change what is one's own; "
            "admin: everything."
        ),
    ],
    expires: Annotated[
        str, typer.Option(help="How long it holds, such as 12h, 30d or 8w; never: for ever.")
    ] = "90d",
) -> None:
    """Make a token and print it. It is printed once; only a digest of it is kept."""
    seconds = None if expires == "never" else read_seconds(expires, "never")
    if seconds == 0:
        raise typer.BadParameter("a token holds for 1m or longer")
    body = {"user": of, "scope": scope, "seconds": seconds}
    made = _find_keeper(call, "token create").post("/v1/tokens", body)
    if not call.as_json:
        until = "for ever" if seconds is None else f"until {_moment(made['expires_at'])}"
        words = f"token {made['id']} of {made['user']}, scope {made['scope']}, holds {until}"
        typer.echo(f"{words}; it is not shown again:", err=True)
    call.tell(made, lambda _: made["token"])


@command(token, "list")
def list_tokens(
    call: Call,
    of: Annotated[str | None, typer.Option("--user", help="Only tokens of this user.")] = None,
) -> None:
    """List the tokens, without their secrets, the newest first."""
    found = _find_keeper(call, "token list").get("/v1/tokens", user=of)["items"]
    heads = ("id", "user", "scope", "usable", "created", "expires", "revoked")
    rows = [
        (
            *(each["id"], each["user"], each["scope"], "yes" if each["usable"] else "no"),
            *map(_moment, (each["created_at"], each["expires_at"], each["revoked_at"])),
        )
        for each in found
    ]
    call.tell(found, lambda _: Table(heads, rows))


@command(token, "revoke")
def revoke_token(
    call: Call, id: Annotated[str, typer.Argument(metavar="ID", help="As the list has it.")]
) -> None:
    """Let a token give nothing from now on."""
    found = _find_keeper(call, "token revoke").post(f"/v1/tokens/{quote(id, safe='')}/revoke")
    call.tell(found, lambda _: f"token {id} of {found['user']} is revoked")


@command(user, "create")
def create_user(
    call: Call,
    name: UserName,
    experiments: Count = None,
    trials: Trials = None,
    spec_bytes: Bytes = None,
) -> None:
    """Make a user, or bring one back who was removed.

    Quotas that are not given do not limit; a user who is brought back keeps the earlier ones.
    """
    body = {"name": name, "quotas": _read_quotas(experiments, trials, spec_bytes)}
    call.tell(_find_keeper(call, "user create").post("/v1/users", body), _show_users)


@command(user, "list")
def list_users(call: Call) -> None:
    """List the users and their quotas."""
    call.tell(
        _find_keeper(call, "user list").get("/v1/users")["items"], lambda found: _show_users(*found)
    )


@command(user, "quota")
def change_quotas(
    call: Call,
    name: UserName,
    experiments: Count = None,
    trials: Trials = None,
    spec_bytes: Bytes = None,
) -> None:
    """Set the quotas that are given and leave the others; -1 is no limit."""
    quotas = _read_quotas(experiments, trials, spec_bytes)
    path = f"/v1/users/{quote(name, safe='')}/quotas"
    call.tell(_find_keeper(call, "user quota").post(path, quotas), _show_users)


@command(user, "remove")
def remove_user(call: Call, name: UserName) -> None:
    """Revoke a user's tokens, and refuse the user from now on. What the user posted stays."""
    path = f"/v1/users/{quote(name, safe='')}/remove"
    call.tell(_find_keeper(call, "user remove").post(path), _show_users)


def list_audit(
    call: Call,
    of: Annotated[str | None, typer.Option("--user", help="Only entries of this user.")] = None,
    refused: Annotated[
        bool | None, typer.Option("--refused/--done", help="Only refusals, or only deeds.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="The largest number of rows.")] = 50,
) -> None:
    """Show who did what, when and from where, and who was refused; the newest first."""
    wish = None if refused is None else str(refused).lower()
    found = _find_keeper(call, "audit").items("/v1/audit", limit, user=of, refused=wish)
    heads = ("at", "user", "token", "address", "", "action", "detail")
    rows = [
        (
            *(_moment(each["at"]), each["user"], each["token"], each["address"]),
            *("refused" if each["refused"] else "", each["action"], each["detail"]),
        )
        for each in found
    ]
    call.tell(found, lambda _: Table(heads, rows))


def _find_keeper(call: Call, command: str) -> Client:
    """Return who keeps users and tokens: the service whose address was given, else the database."""
    if call.has_address:
        return call.client
    from sqlalchemy.exc import SQLAlchemyError

    from eigensweep.command.local import open_accounts
    from eigensweep.service.settings import StartError

    try:
        return open_accounts(command)
    except (StartError, SQLAlchemyError, OSError) as error:
        words = f"{error}; give the address of a service with --url to ask it instead"
        raise FailedError(words) from error


class UserJson(TypedDict):
    """A user, as the API tells of one."""

    name: str
    quotas: dict[str, int | None]
    created_at: str
    removed_at: str | None


def _read_quotas(
    experiments: int | None, trials: int | None, spec_bytes: int | None
) -> dict[str, int | None]:
    """Return the quotas that were given; -1 is no limit."""
    given = {"max_experiments": experiments, "max_trials": trials, "max_spec_bytes": spec_bytes}
    return {
        name: None if value == -1 else value for name, value in given.items() if value is not None
    }


def _show_users(*users: UserJson) -> Table:
    heads = ("user", "experiments", "trials", "spec bytes", "created", "removed")
    rows = [
        (
            *(each["name"], *each["quotas"].values()),
            *map(_moment, (each["created_at"], each["removed_at"])),
        )
        for each in users
    ]
    return Table(heads, rows)


def _moment(text: str | None) -> str | None:
    """Return a time of the API as people write it, in UTC."""
    return None if text is None else f"{datetime.fromisoformat(text):%Y-%m-%d %H:%M} UTC"

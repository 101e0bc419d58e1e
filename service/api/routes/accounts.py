"""Users, tokens and quotas, and the audit log. Runs in the service's process."""

from __future__ import annotations

import getpass
import os
import re
from types import SimpleNamespace
from typing import Annotated

from fastapi import APIRouter, Body, FastAPI, Path, Query, Request, Response
from pydantic import AfterValidator, Field

from eigensweep.common.plain_numbers import PlainNumbers
from eigensweep.service.api.answers.errors import answer_errors, describe_errors
from eigensweep.service.api.answers.paging import cut, decode
from eigensweep.service.api.answers.schemas import (
    AnswerModel,
    Asked,
    Items,
    Page,
    PageAsked,
    UsageNow,
)
from eigensweep.service.api.answers.written import ServiceRoute
from eigensweep.service.api.callers.callers import ADMIN, AsOperator, Reader, tell_audit
from eigensweep.service.api.parts import TheService
from eigensweep.service.record.journal.usage import sum_by_user
from eigensweep.service.record.sql.tables import OPERATOR
from eigensweep.service.record.users import accounts
from eigensweep.service.record.users.audit import Audit, AuditNow
from eigensweep.service.settings import Settings

router = APIRouter(tags=["access"], route_class=ServiceRoute)


def _check_form(name: str) -> str:
    if not re.fullmatch(accounts.NAME, name):
        raise ValueError(f"should {accounts.FORM}")
    return name


NewName = Annotated[
    str,
    AfterValidator(_check_form),
    Field(json_schema_extra={"pattern": f"^{accounts.NAME}$"}),
]
UserName = Annotated[str, Path(min_length=1, max_length=64)]
TokenId = Annotated[str, Path(min_length=1, max_length=16, description="As the list has it")]
LONGEST_SECONDS = 10 * 366 * 24 * 3600


def create_accounts_app(settings: Settings, command: str) -> FastAPI:
    """Return an application for a terminal that answers from the database of the settings alone.

    Who may read the database asks. The audit log names the `command` and the user of the system.
    """
    app, url = FastAPI(), settings.database
    audit = Audit(url, settings.audit_entries)
    app.state.service = SimpleNamespace(accounts=accounts.Accounts(url), audit=audit)
    app.include_router(router, prefix="/v1")
    answer_errors(app)
    who = _name_user()

    def enter(told: str) -> None:
        audit.add(
            f"eigensweep {command}",
            user=OPERATOR,
            token=None,
            address=None,
            refused=False,
            detail=f"{told}, by {who} at the database",
        )

    app.add_middleware(AsOperator, enter=enter)
    return app


def _name_user() -> str:
    """Return who runs this process; in a container that may be a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


class Me(AnswerModel):
    """Who sends the request."""

    user: str = Field(description="`operator` is who runs the service")
    scope: accounts.ScopeName
    token: str | None = Field(
        description="Id of the token, EIGENSWEEP_TOKEN, or `proxy`; null where none is needed"
    )


class UserRequest(Asked):
    """A new user."""

    name: NewName = Field(examples=["anna"])
    quotas: accounts.Quotas = accounts.Quotas()


class TokenRequest(Asked, PlainNumbers):
    """A new token."""

    user: NewName = Field(description="Made, if there is none", examples=["anna"])
    scope: accounts.ScopeName
    seconds: int | None = Field(
        90 * 24 * 3600, ge=1, le=LONGEST_SECONDS, description="How long it holds; null: for ever"
    )


class UserUsageNow(UsageNow):
    """What the experiments of one user have used."""

    user: str = Field(description="`operator` is who runs the service")
    experiments: int


class AuditQuery(PageAsked):
    """Selects entries of the audit log."""

    user: str | None = Field(None, max_length=64, description="Only of this user")
    refused: bool | None = Field(None, description="Only refusals, or only deeds")


@router.get("/me", summary="Who am I?")
async def get_me(caller: Reader) -> Me:
    """Return the user and the scope that the request is answered for."""
    return Me(user=caller.user, scope=caller.scope, token=caller.token)


@router.get("/usage", summary="What did users use?")
def show_usage(service: TheService, caller: Reader) -> Items[UserUsageNow]:
    """Return what each user's experiments have used; without the scope admin only one's own."""
    found = sum_by_user(service.record.url)
    if not caller.may("admin"):
        found = [each for each in found if each.user == caller.user]
    return Items(
        items=[
            UserUsageNow.made_of(each, user=each.user, experiments=each.experiments)
            for each in found
        ]
    )


@router.get("/users", summary="List users", dependencies=[ADMIN])
def list_users(service: TheService) -> Items[accounts.UserNow]:
    """Return all users with their quotas, those who were removed among them."""
    return Items(items=service.accounts.list_users())


@router.post(
    "/users",
    status_code=201,
    summary="Make a user",
    dependencies=[ADMIN],
    responses=describe_errors(409),
)
def create_user(service: TheService, request: Request, asked: UserRequest) -> accounts.UserNow:
    """Make a user, or bring one back who was removed; tokens that were revoked stay so."""
    made = service.accounts.create_user(asked.name, asked.quotas)
    tell_audit(request, f"user {made.name}: {made.quotas}")
    return made


@router.post("/users/{name}/quotas", summary="Set quotas", dependencies=[ADMIN])
def change_quotas(
    service: TheService,
    request: Request,
    name: UserName,
    quotas: Annotated[accounts.Quotas, Body()],
) -> accounts.UserNow:
    """Set the quotas that are named, and leave the others; null is no limit."""
    changed = service.accounts.change_quotas(name, quotas)
    tell_audit(request, f"user {changed.name}: {changed.quotas}")
    return changed


@router.post("/users/{name}/remove", summary="Remove a user", dependencies=[ADMIN])
def remove_user(service: TheService, request: Request, name: UserName) -> accounts.UserNow:
    """Revoke a user's tokens and refuse the user from now on; what the user posted stays."""
    removed = service.accounts.remove_user(name)
    tell_audit(request, f"user {removed.name} removed")
    return removed


@router.get("/tokens", summary="List tokens", dependencies=[ADMIN])
def list_tokens(
    service: TheService, user: Annotated[str | None, Query(max_length=64)] = None
) -> Items[accounts.TokenNow]:
    """Return the tokens of all users or of one, without their secrets, the newest first."""
    return Items(items=service.accounts.list_tokens(user))


@router.post(
    "/tokens",
    status_code=201,
    summary="Make a token",
    dependencies=[ADMIN],
    responses=describe_errors(409),
)
def create_token(
    service: TheService, request: Request, asked: TokenRequest, response: Response
) -> accounts.NewToken:
    """Make a token. The answer has its secret, which cannot be told again."""
    made = service.accounts.create_token(asked.user, asked.scope, asked.seconds)
    tell_audit(request, f"token {made.id} of user {made.user}, scope {made.scope}")
    response.headers["Cache-Control"] = "no-store"
    return made


@router.post("/tokens/{id}/revoke", summary="Revoke a token", dependencies=[ADMIN])
def revoke_token(service: TheService, request: Request, id: TokenId) -> accounts.TokenNow:
    """Let a token give nothing from now on. A second call changes nothing."""
    revoked = service.accounts.revoke_token(id)
    tell_audit(request, f"token {revoked.id} of user {revoked.user} revoked")
    return revoked


@router.get("/audit", summary="Read the audit log", dependencies=[ADMIN])
def list_audit(service: TheService, query: Annotated[AuditQuery, Query()]) -> Page[AuditNow]:
    """Return who did what, when and from where, and who was refused; the newest first."""
    after = decode("-id", query.cursor, (int,))
    found = service.audit.list(
        user=query.user,
        refused=query.refused,
        limit=query.limit + 1,
        before=None if after is None else int(after[0]),
    )
    page, cursor = cut(found, query.limit, "-id", lambda last: [last.id])
    return Page(items=page, next_cursor=cursor)

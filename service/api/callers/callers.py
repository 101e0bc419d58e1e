"""Who sends a request, and what a route needs of them.

Runs in the service's process. `Access` finds the caller of each request; a route says which scope
it needs by a dependency: `READ`, `SUBMIT` or `ADMIN`, or a parameter of the types below.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI, Request, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, RouteContext, iter_route_contexts
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy.exc import SQLAlchemyError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.service.record.errors import NotOwnerError, ScopeError
from eigensweep.service.record.sql.rows import RowSession
from eigensweep.service.record.sql.tables import OPERATOR
from eigensweep.service.record.users.accounts import SCOPES, ScopeName, includes
from eigensweep.service.record.users.audit import Audit

logger = logging.getLogger(__name__)

READING: Final = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing."""
FindScope = Callable[[str, str], ScopeName | None]
"""Says which scope a request with a body needs, by method and path; None: no route takes it."""


@dataclass(frozen=True)
class Caller:
    """Who sends a request."""

    user: str
    scope: ScopeName
    token: str | None
    """Id of the token, EIGENSWEEP_TOKEN, `proxy`, or None where no token is needed."""
    address: str | None

    def may(self, needed: ScopeName) -> bool:
        """Return whether the caller's scope is enough."""
        return includes(self.scope, needed)

    def owns(self, owner: str) -> bool:
        """Return whether the caller may change what a user has posted."""
        return self.may("admin") or (self.may("submit") and self.user == owner)

    def require_owner(self, owner: str, what: str) -> None:
        """Refuse a caller who may not change what belongs to another user.

        Raises:
            NotOwnerError: names the owner.
        """
        if not self.owns(owner):
            raise NotOwnerError(
                f"{what} belongs to user '{owner}': this needs a token of that user, or one with "
                f"scope 'admin'; yours is of user '{self.user}'"
            )


class Needs:
    """A dependency that lets requests through whose caller has a scope."""

    def __init__(self, scope: ScopeName) -> None:
        self.scope: ScopeName = scope

    async def __call__(
        self,
        request: Request,
        _: Annotated[  # for the page /docs
            HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))
        ],
    ) -> Caller:
        """Return the caller.

        Raises:
            ScopeError: if the caller's scope is not enough.
        """
        return require(request, self.scope)


READ, SUBMIT, ADMIN = (Depends(Needs(scope)) for scope in SCOPES)
Reader = Annotated[Caller, READ]
"""A route's parameter of this type is the caller, who may read."""
Submitter = Annotated[Caller, SUBMIT]
"""A route's parameter of this type is the caller, who may post."""


def require(request: Request, needed: ScopeName) -> Caller:
    """Return the caller of a request, for which the largest `needed` is kept.

    Raises:
        ScopeError: if the caller's scope is not enough; names the one that is needed.
    """
    caller: Caller = request.state.caller
    before: ScopeName = getattr(request.state, "needed", "read")
    request.state.needed = max(before, needed, key=SCOPES.index)
    if not caller.may(needed):
        raise ScopeError(
            f"this needs a token with scope '{needed}'; yours, of user '{caller.user}', has "
            f"scope '{caller.scope}'"
        )
    return caller


def tell_audit(request: Request, words: str) -> None:
    """Say in the audit log what a request did, beside its method, path and caller."""
    request.state.told = words


def enter_deed(request: Request, audit: Audit, rows: RowSession, detail: str) -> None:
    """Write a request's entry of the audit log in the transaction that does what it asks for.

    `Access` writes the entries of all other requests, each in a transaction of its own.
    """
    enter(request, audit, detail, rows)
    request.state.is_entered = True


def enter_bulk(
    request: Request,
    audit: Audit,
    action: str,
    done: Sequence[str],
    refused: Mapping[str, Sequence[str]],
) -> None:
    """Say in the audit log what was done to which experiments, and which were refused, by why.

    A database that is away costs the entry, and not the answer; the log has its words.
    """
    tell_audit(request, f"{action} {', '.join(done)}")
    request.state.is_entered = not done
    for why, ids in refused.items():
        detail = f"{action} {', '.join(ids)}: {why}"
        try:
            enter(request, audit, detail, refused=True)
        except SQLAlchemyError as error:
            logger.error("audit entry lost detail=%s error=%s", detail, error)


def enter(
    request: Request,
    audit: Audit,
    detail: str,
    within: RowSession | None = None,
    refused: bool = False,
    address: str | None = None,
) -> None:
    """Write an entry of the audit log for a request; `address` is that of an unknown caller."""
    caller: Caller | None = request.state.caller
    audit.add(
        f"{request.method} {request.url.path}",
        user=caller.user if caller else None,
        token=caller.token if caller else None,
        address=caller.address if caller else address,
        refused=refused,
        detail=detail,
        within=within,
    )


def find_scope(route: RouteContext) -> ScopeName | None:
    """Return the scope that a route needs, None if none was declared.

    A route that changes something declares it itself: what all routes of a router need does not
    count there.
    """
    found = set(_list_scopes(route.original_route))
    if (route.methods or set()) <= READING:
        found |= set(_list_scopes(route))
    return max(found, key=SCOPES.index, default=None)


def require_scopes(app: FastAPI, open_paths: frozenset[str]) -> FindScope:
    """Refuse to make an application that has a route without a scope; return what finds scopes.

    Raises:
        RuntimeError: names the route.
    """
    changing = []
    for route in iter_route_contexts(app.routes):
        if not isinstance(route.original_route, APIRoute) or route.path in open_paths:
            continue
        needed, methods = find_scope(route), route.methods or set()
        if needed is None:
            raise RuntimeError(
                f"the route {sorted(methods)} {route.path} does not say which scope it "
                "needs: give it the dependency READ, SUBMIT or ADMIN of eigensweep.service.api."
                "callers"
            )
        if not methods <= READING:
            changing.append((methods, route.path_regex, needed))

    def find(method: str, path: str) -> ScopeName | None:
        fitting = (s for methods, place, s in changing if method in methods and place.match(path))
        return next(fitting, None)

    return find


def _list_scopes(route: Any) -> Iterator[ScopeName]:
    waiting: list[Dependant] = [route.dependant] if hasattr(route, "dependant") else []
    while waiting:
        each = waiting.pop()
        waiting += each.dependencies
        if isinstance(each.call, Needs):
            yield each.call.scope


class AsOperator:
    """Sends every request in the name of who runs the service: for an application in a terminal.

    `enter` takes what a request did, in words, for the audit log.
    """

    def __init__(self, app: ASGIApp, enter: Callable[[str], None] | None = None) -> None:
        self._app, self._enter = app, enter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.setdefault("state", {})
        state["caller"] = Caller(OPERATOR, "admin", None, None)
        statuses = list[int]()

        async def watch(message: Message) -> None:
            statuses.append(message.get("status", 0))
            await send(message)

        await self._app(scope, receive, watch)
        if self._enter and "told" in state and statuses[0] < 400:
            self._enter(state["told"])

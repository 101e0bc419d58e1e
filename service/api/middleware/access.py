"""Checks who may send requests, from which pages and how often, and writes down what they did.

Runs in the service's process. Every path needs a caller but those of `PUBLIC`. Which scope a
caller needs is said by the routes; see `callers`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.service.api.answers import writers
from eigensweep.service.api.answers.errors import answer_error, problem
from eigensweep.service.api.answers.shared_answers import SingleFlight
from eigensweep.service.api.answers.writers import BusyError
from eigensweep.service.api.callers.callers import READING, Caller, enter
from eigensweep.service.api.callers.identity import Identity, UnknownCallerError
from eigensweep.service.api.callers.sessions import Sessions
from eigensweep.service.api.middleware import sign_in
from eigensweep.service.api.middleware.page_headers import asks_for_page
from eigensweep.service.api.middleware.rates import Rates
from eigensweep.service.record.users.audit import Audit
from eigensweep.store.places.durable_files import StorageError

logger = logging.getLogger(__name__)

PUBLIC: Final = frozenset(("/healthz", "/readyz", sign_in.PLACE, sign_in.END))
"""What answers everybody; `/readyz` tells strangers no details."""
PUBLIC_BELOW: Final = ("/static/",)
"""Folders of files that are the same everywhere."""
REFUSALS: Final = (401, 403, 429)
LONGEST_SECONDS: Final = 10.0
"""How long a request waits to hear whether there are tokens."""


class Access:
    """Answers 401 to who is not known, 429 to who asks too often, 403 to pages of other origins.

    While no token exists the service is for this machine only. A request that names a public host
    then comes from a web page whose name leads to this machine (DNS rebinding), and is answered
    403. So is, always, what a page of another origin requests; only its links lead here.
    """

    def __init__(
        self,
        app: ASGIApp,
        identity: Identity,
        session_keeper: Sessions,
        rates: Rates,
        audit: Audit,
    ) -> None:
        self._app = app
        self._identity = identity
        self._is_open = SingleFlight(identity.is_open)
        self._sessions = session_keeper
        self._rates = rates
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # nothing here speaks it
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.caller = None
        answer: ASGIApp = self._app
        try:
            answer = await self._answer(request) or self._app
        except SQLAlchemyError as error:
            answer = answer_error(request, error)
        await answer(scope, receive, self._watch(request, send))

    async def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that goes no further; set the caller of another one."""
        refusal = await self._refuse_page(request)
        if refusal is not None:
            return refusal
        path = request.url.path
        if path in (sign_in.PLACE, sign_in.END):
            return await self._answer_session(request)
        if path == "/readyz":
            await self._look_who_asks(request)
        if path in PUBLIC or path.startswith(PUBLIC_BELOW):
            return None
        return await self._refuse_stranger(request)

    async def _refuse_page(self, request: Request) -> Response | None:
        """Return the refusal of a request that a page of another origin has a browser send."""
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if is_public_name(host) and await run_in_threadpool(self._identity.is_open):
            return _refuse(
                request,
                403,
                f"a service without a token does not answer as '{host[:80]}'; use localhost or an "
                "IP address, or make a token with `eigensweep token create`",
            )
        fetched = request.headers.get("sec-fetch-site", "none")
        is_foreign = fetched not in ("same-origin", "none") or (
            origin is not None and _read_place(origin) != host.lower()
        )
        is_link = request.method in READING and request.headers.get("sec-fetch-mode") == "navigate"
        if is_foreign and not is_link:
            return _refuse(request, 403, "a page of another origin gets and changes nothing here")
        return None

    async def _refuse_stranger(self, request: Request) -> Response | None:
        """Return the refusal of a request whose caller is not known, or asks too often."""
        address = self._identity.find_address(request) or ""
        if (pause := self._rates.find_pause(address)) is not None:
            return _refuse_for(request, pause, "wrong tokens came from your address too often")
        try:
            caller = await self._identify(request)
        except UnknownCallerError as error:
            if "authorization" in request.headers:
                self._rates.count_failure(address)
            if asks_for_page(request.scope):
                request.state.told = str(error)
                place = request.url.replace(scheme="", netloc="", fragment="")
                return sign_in.ask_to_sign_in(place=str(place))
            return _refuse(request, 401, str(error), {"WWW-Authenticate": "Bearer"})
        request.state.caller = caller
        if (pause := self._rates.count(caller.user, caller.token or "", address)) is not None:
            return _refuse_for(request, pause, "you have sent too many requests")
        return None

    async def _answer_session(self, request: Request) -> Response | None:
        """Answer what a browser sends to sign in or out, and show the form."""
        if await run_in_threadpool(self._identity.is_open):
            return None  # there is nothing to sign in to
        path, method = request.url.path, request.method
        try:
            if (path, method) == (sign_in.PLACE, "POST"):
                return await self._sign_in(request)
            if (path, method) == (sign_in.END, "POST"):
                return await self._sign_out(request)
        except StorageError as error:
            return problem(503, str(error), headers={"Retry-After": "5"})
        if path == sign_in.END or method not in ("GET", "HEAD"):
            takes = "POST" if path == sign_in.END else "GET, HEAD, POST"
            words = f"{path} does not take {method}; it takes {takes}"
            return problem(405, words, headers={"Allow": takes})
        await self._look_who_asks(request)
        if request.state.caller is not None:
            return RedirectResponse("/", 303)
        return sign_in.ask_to_sign_in("You are signed out.", 200)

    async def _sign_in(self, request: Request) -> Response:
        """Return a session to who sends a token, and lead back to the page where the form was."""
        token, place = await sign_in.read_form(request)
        address = self._identity.find_address(request)
        if (pause := self._rates.find_pause(address or "")) is not None:
            return _refuse_for(request, pause, "wrong tokens came from your address too often")
        try:
            grant = await run_in_threadpool(self._identity.check, token)
        except UnknownCallerError as error:
            self._rates.count_failure(address or "")
            request.state.told = str(error)
            return sign_in.ask_to_sign_in(str(error), place=place)
        request.state.caller = Caller(grant.user, grant.scope, grant.token_id, address)
        request.state.told = "signed in"
        cookie = await run_in_threadpool(self._sessions.begin, grant.token_id, grant.digest)
        return sign_in.lead_back(request, place, cookie)

    async def _sign_out(self, request: Request) -> Response:
        """End the browser's session here and there, and lead to the page that says so."""
        await self._look_who_asks(request)
        await run_in_threadpool(self._identity.end_session, request.headers)
        request.state.told = "signed out"
        return sign_in.lead_out()

    async def _look_who_asks(self, request: Request) -> None:
        """Set the caller of a request that needs none."""
        try:
            request.state.caller = await self._identify(request)
        except (UnknownCallerError, SQLAlchemyError):
            logger.debug("a stranger asks path=%s", request.url.path)

    async def _identify(self, request: Request) -> Caller:
        if self._identity.may_be_open and await self._find_whether_open():
            return self._identity.name_operator(request)
        return await run_in_threadpool(self._identity.identify, request)

    async def _find_whether_open(self) -> bool:
        """Return whether there is no token.

        Raises:
            SQLAlchemyError: if the database does not answer.
        """
        try:
            return await asyncio.wait_for(self._is_open.ask(), LONGEST_SECONDS)
        except TimeoutError:
            words = f"the database has not answered for {LONGEST_SECONDS:g} s"
            raise PoolTimeoutError(words) from None

    def _watch(self, request: Request, send: Send) -> Send:
        """Return a `send` that writes deeds and refusals into the audit log before the answer."""

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                await self._write_down(request, message)
            await send(message)

        return watched

    async def _write_down(self, request: Request, answer: Message) -> None:
        caller: Caller | None = request.state.caller
        address = self._identity.find_address(request)
        refused = answer["status"] in REFUSALS
        needed = getattr(request.state, "needed", "read")
        is_deed = request.method not in READING and answer["status"] < 400
        told = getattr(request.state, "told", "")
        is_entered = getattr(request.state, "is_entered", False)
        if refused:
            who = caller.user if caller else ""
            if not self._rates.is_news(str(answer["status"]), who, address or ""):
                return
        elif not is_deed or (needed == "read" and not told) or is_entered:
            return
        place = Headers(raw=answer["headers"]).get("location", "")
        write = partial(
            enter, request, self._audit, told or place, refused=refused, address=address
        )
        try:
            await writers.WRITERS.run(write)
        except (SQLAlchemyError, BusyError) as error:
            logger.error("an entry of the audit log is lost error=%s", type(error).__name__)


def _refuse(
    request: Request, status: int, words: str, headers: dict[str, str] | None = None
) -> Response:
    request.state.told = words
    return problem(status, words, headers=headers)


def _refuse_for(request: Request, seconds: int, words: str) -> Response:
    """Return the refusal of a request that may come again in so many seconds."""
    words = f"{words}; try again in {seconds} s"
    return _refuse(request, 429, words, {"Retry-After": str(seconds)})


def _read_place(origin: str) -> str:
    """Return host and port of an Origin header, nothing for one that is no address."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def is_public_name(host: str) -> bool:
    """Return whether a Host header is a name that public name servers can resolve.

    >>> [is_public_name(h) for h in ("localhost:8642", "10.0.0.7", "[::1]:80", "evil.example:8642")]
    [False, False, False, True]
    """
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]").lower().rstrip(".")
    if "." not in name or name.endswith(".localhost"):
        return False
    try:
        ip_address(name)
    except ValueError:
        return True
    return False

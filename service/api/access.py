"""Checks who may send requests: by token or session, by the Host header, and by a page's origin.

Runs in the service's process.
"""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from eigensweep.service.api import sessions
from eigensweep.service.api.errors import problem
from eigensweep.service.api.sessions import Sessions

GUARDED: Final = (
    *("/v1", "/metrics", "/mlflow"),
    *("/experiments", "/reproductions", "/compare", "/new"),
)
"""What needs the token, with all below; and the first page."""
READING: Final = ("GET", "HEAD", "OPTIONS")


class Access:
    """Answers 401 to requests for `GUARDED` that carry neither token nor session.

    `sessions` is the file that keeps the sessions of browsers.

    Without a token the service is for this machine only. A request that names a public host then
    comes from a web page whose name leads to this machine (DNS rebinding), and is answered 403. So
    is, with and without a token, a request that a page of another origin sends to change something.
    """

    def __init__(self, app: ASGIApp, token: SecretStr | None, sessions: Path) -> None:
        self._app = app
        self._token = token.get_secret_value() if token is not None else ""
        self._sessions = Sessions(sessions, self._token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._refuse_page(scope, headers) or self._refuse_stranger(scope, headers)
            if refusal is not None:
                answer = refusal
            elif self._token and scope["path"] in (sessions.PLACE, sessions.END):
                answer = await sessions.answer_session(Request(scope, receive), self._sessions)
        await answer(scope, receive, send)

    def _refuse_page(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request that a page of another origin has a browser send."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._token and is_public_name(host):
            return problem(
                403,
                f"a service without EIGENSWEEP_TOKEN does not answer as '{host[:80]}'; "
                "use localhost or an IP address, or set a token",
            )
        if scope["method"] in READING:
            return None
        fetched = headers.get("sec-fetch-site", "none")
        if fetched not in ("same-origin", "none") or (
            origin is not None and _read_place(origin) != host.lower()
        ):
            return problem(403, "a page of another origin may not change anything here")
        return None

    def _refuse_stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the refusal of a request that needs the token and has neither it nor a session."""
        path = scope["path"]
        is_guarded = path == "/" or any(path == p or path.startswith(f"{p}/") for p in GUARDED)
        if not self._token or not is_guarded:
            return None
        given = headers.get("authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            return None
        if self._sessions.has(headers.get("cookie", "")):
            return None
        if scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", ""):
            return sessions.ask_to_sign_in()
        return problem(
            401,
            "this service needs a token: send the header "
            "'Authorization: Bearer <the value of EIGENSWEEP_TOKEN>'",
            headers={"WWW-Authenticate": "Bearer"},
        )


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

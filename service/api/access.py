"""Who may ask: the token that /v1 wants, and what another site's page put into a browser."""

from __future__ import annotations

import hmac
from ipaddress import ip_address
from typing import Final

from pydantic import SecretStr
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from eigensweep.service.api.errors import problem

GUARDED: Final = "/v1"


class Access:
    """Answers 401 to requests under /v1 that do not carry the token.

    Without a token the service is for this machine, so a request that asks for it by a public name
    comes from a page that was made to point here (DNS rebinding): 403.
    """

    def __init__(self, app: ASGIApp, token: SecretStr | None) -> None:
        self._app = app
        secret = token.get_secret_value() if token is not None else ""
        self._expected = f"Bearer {secret}".encode() if secret else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if self._expected is None:
                host = headers.get("host", "")
                if is_public_name(host):
                    refusal = problem(
                        403,
                        f"without EIGENSWEEP_TOKEN this service is not asked for as '{host[:80]}', "
                        "but as localhost or by an address",
                    )
            elif scope["path"].startswith(GUARDED):
                given = headers.get("authorization", "").encode()
                if not hmac.compare_digest(given, self._expected):
                    refusal = problem(
                        401,
                        "this service asks for a token: send the header "
                        "'Authorization: Bearer <the value of EIGENSWEEP_TOKEN>'",
                        headers={"WWW-Authenticate": "Bearer"},
                    )
        await (refusal or self._app)(scope, receive, send)


def is_public_name(host: str) -> bool:
    """Return whether a Host header is a name that the internet's name servers could answer for.

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

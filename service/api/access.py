"""Checks who may send requests: by token, and by the Host header.

Runs in the service's process.
"""

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

    Without a token the service is for this machine only. A request that names a public host then
    comes from a web page whose name leads to this machine (DNS rebinding), and is answered 403.
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
                        f"a service without EIGENSWEEP_TOKEN does not answer as '{host[:80]}'; "
                        "use localhost or an IP address, or set a token",
                    )
            elif scope["path"].startswith(GUARDED):
                given = headers.get("authorization", "").encode()
                if not hmac.compare_digest(given, self._expected):
                    refusal = problem(
                        401,
                        "this service needs a token: send the header "
                        "'Authorization: Bearer <the value of EIGENSWEEP_TOKEN>'",
                        headers={"WWW-Authenticate": "Bearer"},
                    )
        await (refusal or self._app)(scope, receive, send)


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

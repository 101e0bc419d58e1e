"""Signing in and out with a browser, which cannot send a token: a form, and a cookie in its place.

Runs in the service's process. A cookie names the token that was given, and is known here by a
digest that is made with the token's own: it ends with the token, and who reads the file of sessions
or the database cannot make one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from contextlib import suppress
from html import escape
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eigensweep.service.api.middleware.page_headers import PAGE_HEADERS
from eigensweep.store.durable_files import write_whole

COOKIE: Final = "eigensweep_session"
PLACE: Final = "/session"
"""Where the form is, and is sent."""
END: Final = "/session/end"
"""Where the button to sign out leads."""
LONGEST: Final = 30 * 86400.0
"""Seconds after which a session ends by itself."""
MOST: Final = 1000
"""Sessions that are kept; of more, the oldest ones end."""
LARGEST: Final = 10_000
"""Bytes of a form that are looked at."""
PAGE: Final = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Sign in: Eigensweep</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css"><script src="/static/sign-in.js" defer></script>
</head><body><main class="narrow">
<h1>Eigensweep</h1>
<p role="status">%s</p>
<form method="post" action="{PLACE}" class="stack">
<label for="token">Your token, or the value of EIGENSWEEP_TOKEN</label>
<input id="token" type="password" name="token" autocomplete="current-password" autofocus required>
<input type="hidden" name="place" value="%s"> <button class="primary">Sign in</button>
</form></main></body></html>
"""


class Sessions:
    """The sessions of browsers. A file keeps them, so that they outlive the service's process.

    It holds when each began, under a digest of its cookie.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began: dict[str, float] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = json.loads(path.read_bytes())
            self._began = {str(digest): float(at) for digest, at in content.items()}

    def has(self, cookie: str, token_digest: str) -> bool:
        """Return whether a cookie is that of a session of this token that has not ended."""
        began = self._began.get(_digest(cookie, token_digest))
        return began is not None and time.time() - began < LONGEST

    def begin(self, token_id: str, token_digest: str) -> str:
        """Begin a session of a token and return its cookie.

        Raises:
            StorageError: if it cannot be written.
        """
        cookie, now = f"{token_id}.{secrets.token_urlsafe(32)}", time.time()
        alive = {digest: at for digest, at in self._began.items() if now - at < LONGEST}
        self._keep(dict([*alive.items(), (_digest(cookie, token_digest), now)][-MOST:]))
        return cookie

    def end(self, cookie: str, token_digest: str) -> None:
        """End a session; its cookie opens nothing any more.

        Raises:
            StorageError: if it cannot be written; the session has ended until the next start.
        """
        ended = _digest(cookie, token_digest)
        if ended in self._began:
            self._keep({digest: at for digest, at in self._began.items() if digest != ended})

    def _keep(self, began: dict[str, float]) -> None:
        self._began = began
        write_whole(self._path, json.dumps(began).encode())


def _digest(cookie: str, token_digest: str) -> str:
    words = f"{COOKIE} {cookie}".encode()
    return hmac.new(token_digest.encode(), words, hashlib.sha256).hexdigest()


def read_cookie(cookies: str) -> tuple[str, str] | None:
    """Return the session's cookie in a Cookie header, and the id of its token; None: none."""
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else (found.value, found.value.partition(".")[0])


def ask_to_sign_in(
    words: str = "Sign in to see this page.", status: int = 401, *, place: str = "/"
) -> Response:
    """Return the page with the form, which leads to `place`."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    return HTMLResponse(PAGE % (escape(words), escape(place)), status, headers | PAGE_HEADERS)


async def read_form(request: Request) -> tuple[str, str]:
    """Return the token that a form sends, and the page where the form was."""
    body = b""
    async for piece in request.stream():
        body += piece[: LARGEST - len(body)]
    sent = parse_qs(body.decode("utf-8", "replace"))
    token, place = (sent.get(name, [""])[0] for name in ("token", "place"))
    is_here = place.startswith("/") and not place.startswith(("//", "/\\")) and place.isprintable()
    return token, place if is_here else "/"


def lead_back(request: Request, place: str, cookie: str) -> Response:
    """Return the answer to who has signed in: the cookie, and the way to a page."""
    response = RedirectResponse(place, 303)
    is_secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))
    response.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=is_secure)
    return response


def lead_out() -> Response:
    """Return the answer to who has signed out, which leads to the page that says so."""
    response = RedirectResponse(PLACE, 303, PAGE_HEADERS)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

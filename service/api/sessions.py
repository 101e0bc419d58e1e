"""Signing in and out with a browser, which cannot send a token: a form, and a cookie in its place.

Runs in the service's process.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eigensweep.service.api.errors import problem
from eigensweep.service.api.page_headers import PAGE_HEADERS
from eigensweep.workers.shared.durable_files import StorageError, write_whole

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
<label for="token">The value of EIGENSWEEP_TOKEN</label>
<input id="token" type="password" name="token" autocomplete="current-password" autofocus required>
<input type="hidden" name="place" value="/"> <button class="primary">Sign in</button>
</form></main></body></html>
"""


class Sessions:
    """The sessions of browsers. A file keeps them, so that they outlive the service's process.

    It holds when each began, under a digest of the cookie that is made with the token: the cookie
    cannot be read from the file, and another token ends all sessions.
    """

    def __init__(self, path: Path, token: str) -> None:
        self._path, self._token = path, token.encode()
        self._began: dict[str, float] = {}
        with suppress(OSError, ValueError, TypeError, AttributeError):
            content = json.loads(path.read_bytes())
            self._began = {str(digest): float(at) for digest, at in content.items()}

    def has(self, cookies: str) -> bool:
        """Return whether a Cookie header holds the cookie of a session that has not ended."""
        began = self._began.get(self._find(cookies))
        return began is not None and time.time() - began < LONGEST

    def begin(self) -> str:
        """Begin a session and return its cookie.

        Raises:
            StorageError: if it cannot be written.
        """
        cookie, now = secrets.token_urlsafe(32), time.time()
        alive = {digest: at for digest, at in self._began.items() if now - at < LONGEST}
        self._keep(dict([*alive.items(), (self._digest(cookie), now)][-MOST:]))
        return cookie

    def end(self, cookies: str) -> None:
        """End the session of a Cookie header; its cookie opens nothing any more.

        Raises:
            StorageError: if it cannot be written; the session has ended until the next start.
        """
        ended = self._find(cookies)
        if ended in self._began:
            self._keep({digest: at for digest, at in self._began.items() if digest != ended})

    def is_token(self, given: str) -> bool:
        """Return whether this is the token, in constant time."""
        return hmac.compare_digest(given.encode(), self._token)

    def _keep(self, began: dict[str, float]) -> None:
        self._began = began
        write_whole(self._path, json.dumps(began).encode())

    def _find(self, cookies: str) -> str:
        """Return the digest of the session's cookie in a header; of nothing, if there is none."""
        try:
            found = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            found = None
        return self._digest("" if found is None else found.value)

    def _digest(self, cookie: str) -> str:
        return hmac.new(self._token, f"{COOKIE} {cookie}".encode(), hashlib.sha256).hexdigest()


async def answer_session(request: Request, sessions: Sessions) -> Response:
    """Answer what a browser sends to sign in or out, and show the form."""
    path, method = request.url.path, request.method
    try:
        if (path, method) == (PLACE, "POST"):
            return await _sign_in(request, sessions)
        if (path, method) == (END, "POST"):
            return _sign_out(request, sessions)
    except StorageError as error:
        return problem(503, str(error), headers={"Retry-After": "5"})
    if path == END or method not in ("GET", "HEAD"):
        takes = "POST" if path == END else "GET, HEAD, POST"
        words = f"{path} does not take {method}; it takes {takes}"
        return problem(405, words, headers={"Allow": takes})
    if sessions.has(request.headers.get("cookie", "")):
        return RedirectResponse("/", 303, PAGE_HEADERS)
    return HTMLResponse(PAGE % "You are signed out.", 200, PAGE_HEADERS)


def ask_to_sign_in(words: str = "Sign in to see this page.") -> Response:
    """Return the page with the form."""
    return HTMLResponse(PAGE % words, 401, {"WWW-Authenticate": "Bearer", **PAGE_HEADERS})


async def _sign_in(request: Request, sessions: Sessions) -> Response:
    """Return a cookie to who sends the token, and lead back to the page where the form was."""
    body = b""
    async for piece in request.stream():
        body += piece[: LARGEST - len(body)]
    sent = parse_qs(body.decode("utf-8", "replace"))
    given, place = (sent.get(name, [""])[0] for name in ("token", "place"))
    if not sessions.is_token(given):
        return ask_to_sign_in("This is not the token.")
    is_here = place.startswith("/") and not place.startswith(("//", "/\\")) and place.isprintable()
    response = RedirectResponse(place if is_here else "/", 303)
    response.set_cookie(
        COOKIE,
        sessions.begin(),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response


def _sign_out(request: Request, sessions: Sessions) -> Response:
    """End the browser's session here and there, and lead to the page that says so."""
    sessions.end(request.headers.get("cookie", ""))
    response = RedirectResponse(PLACE, 303, PAGE_HEADERS)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response

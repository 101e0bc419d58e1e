"""Signing in with a browser, which cannot send a token: a form, and a cookie in its place.

Runs in the service's process.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eigensweep.service.api.page_headers import PAGE_HEADERS

COOKIE: Final = "eigensweep_session"
PLACE: Final = "/session"
"""Where the form is sent."""
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
<form method="post" action="{PLACE}" class="stack">
<label for="token">The value of EIGENSWEEP_TOKEN</label>
<input id="token" type="password" name="token" autocomplete="current-password" autofocus required>
<input type="hidden" name="place" value="/"> <button class="primary">Sign in</button>
</form></main></body></html>
"""


def cookie_value(token: str) -> str:
    """Return what the cookie of who knows the token holds; the token cannot be read from it."""
    return hmac.new(token.encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def has_session(cookies: str, token: str) -> bool:
    """Return whether a Cookie header holds the cookie of who knows the token."""
    try:
        found = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return False
    given = b"" if found is None else found.value.encode()
    return hmac.compare_digest(given, cookie_value(token).encode())


def ask_to_sign_in() -> Response:
    """Return the page with the form."""
    return HTMLResponse(PAGE, 401, {"WWW-Authenticate": "Bearer", **PAGE_HEADERS})


async def sign_in(request: Request, token: str) -> Response:
    """Return a cookie to who sends the token, and lead back to the page where the form was."""
    body = b""
    async for piece in request.stream():
        body += piece[: LARGEST - len(body)]
    sent = parse_qs(body.decode("utf-8", "replace"))
    given, place = (sent.get(name, [""])[0] for name in ("token", "place"))
    if not hmac.compare_digest(given.encode(), token.encode()):
        return ask_to_sign_in()
    is_here = place.startswith("/") and not place.startswith(("//", "/\\")) and place.isprintable()
    response = RedirectResponse(place if is_here else "/", 303)
    response.set_cookie(
        COOKIE,
        cookie_value(token),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return response

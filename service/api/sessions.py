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

COOKIE: Final = "eigensweep_session"
PLACE: Final = "/session"
"""Where the form is sent."""
LARGEST: Final = 10_000
"""Bytes of a form that are looked at."""
PAGE: Final = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Eigensweep: sign in</title>
<body style="font-family: sans-serif; margin: 4em auto; max-width: 30em">
<h1>Eigensweep</h1>
<form method="post" action="{PLACE}">
<p><label>The value of EIGENSWEEP_TOKEN<br>
<input type="password" name="token" autocomplete="current-password" autofocus required></label>
<input type="hidden" name="place"> <button>Sign in</button></p>
</form>
<script>document.forms[0].place.value = location.pathname + location.hash</script>
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
    return HTMLResponse(PAGE, 401, {"WWW-Authenticate": "Bearer", "Cache-Control": "no-store"})


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

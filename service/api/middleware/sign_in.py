"""Signing in and out with a browser, by a form. Runs in the service's process."""

from __future__ import annotations

from html import escape
from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from eigensweep.service.api.callers.sessions import COOKIE
from eigensweep.service.api.middleware.page_headers import PAGE_HEADERS

PLACE: Final = "/session"
"""Where the form is, and is sent."""
END: Final = "/session/end"
"""Where the button to sign out leads."""
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

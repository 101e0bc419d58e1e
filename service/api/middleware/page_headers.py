"""Headers of every page for browsers, and of every other answer. Runs in the service's process.

A page loads scripts, styles and data from the service alone, nothing in the text of a page is ever
run, and no other site can show a page in a frame. Source: Content Security Policy Level 3 (W3C).
"""

from __future__ import annotations

import re
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PAGE_HEADERS: Final = {
    "Content-Security-Policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "form-action 'self'",
            "base-uri 'none'",
            "frame-ancestors 'none'",
        )
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOTHING: Final = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
"""For answers that are no pages."""
MLFLOW: Final = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'"
)
"""MLflow's pages compile scripts, and show artifacts in frames of their own."""
OF_USERS: Final = f"{NOTHING}; sandbox"
"""For what a user has put into MLflow: opened as a page, it runs nothing and has no session."""
FILES: Final = re.compile(r"/mlflow/(get-artifact|(ajax-)?api/)")
"""Where MLflow answers with data and files of users."""
PLACE: Final = re.compile(r"/mlflow(/|$)")
"""Where MLflow is."""


def asks_for_page(scope: Scope) -> bool:
    """Return whether a browser asks for a page, and no program for data."""
    is_reading = scope["method"] in ("GET", "HEAD")
    return is_reading and "text/html" in Headers(scope=scope).get("accept", "")


class SafeHeaders:
    """Adds the headers of `PAGE_HEADERS` to every answer that lacks them, with a policy by path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in (PAGE_HEADERS | _find_policy(scope["path"])).items():
                    if name != "Cache-Control":  # files are kept for long
                        headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, add)


def _find_policy(path: str) -> dict[str, str]:
    if FILES.match(path):
        return {"Content-Security-Policy": OF_USERS}
    return {"Content-Security-Policy": MLFLOW if PLACE.match(path) else NOTHING}

"""What an answer costs on its way: only headers where the client wants or has no more, less bytes.

Runs in the service's process. Source: RFC 9110, sections 8.8, 9.3.2 and 13.1.2.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from hashlib import blake2b
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.service.api.mlflow.mlflow_proxy import PLACE

API: Final = "/v1/"
SMALL: Final = 1000
"""Bytes of an answer that goes out as it is: it is one packet."""
LEVEL: Final = 4
"""Of zlib: it takes three quarters of the time of 6, and 3 % more bytes."""
RANDOM: Final = "application/octet-stream"
"""Weights hardly become smaller."""


class Validators:
    """Gives each answer of the API a validator (`ETag`); answers 304 to who has the same already.

    It is made of the answer's bytes, so it follows whatever the answer is made of: rows, the clock,
    Ray's state. That takes 0.01 ms, where the record is read for 1.2 ms and an answer takes 3.5.
    A large file has the one of Starlette, of its time and size. Weights and streams have none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"][:4] != API:
            await self._app(scope, receive, send)
            return
        known = Headers(scope=scope).get("if-none-match", "")
        held: Message | None = None
        is_known = False

        async def compare(message: Message) -> None:
            nonlocal held, is_known
            if is_known:
                return  # the rest of a large file
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                headers.setdefault("Cache-Control", "private, no-cache")
                headers.setdefault("Vary", "Authorization, Cookie")  # `Compression` adds to it
                if message["status"] == 200 and "content-length" in headers:
                    held = message  # until its body is known
                    return
            begin, held = held, None
            if begin is not None:
                headers = MutableHeaders(raw=begin["headers"])
                if not message.get("more_body", False):
                    tag = f'"{blake2b(message["body"], digest_size=12).hexdigest()}"'
                    headers["ETag"] = f"W/{tag}"  # weak: compressed or not
                else:
                    tag = headers.get("ETag", "")
                if tag and (tag in known or known.strip() == "*"):
                    is_known, message = True, _omit(begin)
                await send(begin)
            await send(message)

        await self._app(scope, receive, compare)


def _omit(begin: Message) -> Message:
    """Say that the client has the answer already; return the body of that, which is empty."""
    headers, begin["status"] = MutableHeaders(raw=begin["headers"]), 304
    del headers["Content-Length"], headers["Content-Type"]
    headers.add_vary_header("Accept-Encoding")  # where there is no body, `Compression` does not
    return {"type": "http.response.body", "body": b""}


class Compression(GZipMiddleware):
    """Compresses answers, but no streams of events, no weights, and nothing that MLflow answers."""

    def __init__(self, app: ASGIApp) -> None:
        excluded = (*DEFAULT_EXCLUDED_CONTENT_TYPES, RANDOM)
        super().__init__(app, SMALL, LEVEL, exclude_content_types=excluded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_mlflow = scope["type"] == "http" and scope["path"].startswith(f"{PLACE}/")
        await (self.app if is_mlflow else super().__call__)(scope, receive, send)


class HeadAsGet:
    """Asks the application for GET in the place of HEAD. A stream ends where it would begin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or scope["path"].startswith(f"{PLACE}/"):  # MLflow answers for itself
            await self._app(scope, receive, send)
            return
        answered, streams = False, asyncio.Event()

        async def send_head(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                await send(message)
            elif not answered:
                answered = True
                await send({"type": "http.response.body", "body": b""})
            if message.get("more_body", False):
                streams.set()

        answer = asyncio.ensure_future(self._app({**scope, "method": "GET"}, receive, send_head))
        stream = asyncio.ensure_future(streams.wait())
        await asyncio.wait({answer, stream}, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            answer.cancel()
        stream.cancel()
        with suppress(asyncio.CancelledError):
            await answer

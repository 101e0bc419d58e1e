"""Limits of a request's body: JSON or YAML, and at most one megabyte.

Runs in the service's process.
"""

from __future__ import annotations

import json
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.search_spaces.spec_text import TextError, read_text, refuse_double_keys
from eigensweep.service.api.errors import ProblemItem, problem

LARGEST_BODY: Final = 1024 * 1024
LARGEST_DISCARDED: Final = 64 * LARGEST_BODY
"""Bytes of a refused body that are read and dropped. Most clients read the answer only after they
have sent the whole body; without this they would see a broken connection instead."""
JSON: Final = "application/json"
YAML: Final = "application/yaml"
"""Source: RFC 9512. Such a body is read as spec files are, and handed on as JSON."""


class BodyLimits:
    """Answers 413 to a body over `largest` bytes and 415 to one that is neither JSON nor YAML.

    Bytes are counted as they arrive, so a missing or wrong Content-Length changes nothing. Nothing
    is parsed before the last byte has arrived.
    """

    def __init__(self, app: ASGIApp, largest: int = LARGEST_BODY) -> None:
        self._app = app
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:
            refusal = problem(
                400,
                "a request has either the header Content-Length or Transfer-Encoding, not both",
                headers={"Connection": "close"},
            )
            await refusal(scope, receive, send)
            return
        try:
            body = await self._read(receive)
        except ClientDisconnect:
            return  # what it wanted is not known whole, so it is not done
        if body is None:
            refusal = problem(
                413,
                f"a body has at most {self._largest:,} bytes",
                headers={"Connection": "close"},
            )
            await refusal(scope, receive, send)
            return
        kind = headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if body and kind == YAML:
            try:
                body = json.dumps(read_text(body.decode())).encode()
            except (TextError, UnicodeDecodeError) as error:
                found = ProblemItem(path="", message=str(error), expected="YAML in UTF-8")
                await problem(422, str(error), [found])(scope, receive, send)
                return
            changed = MutableHeaders(scope=scope)
            changed["content-type"], changed["content-length"] = JSON, str(len(body))
        elif body and kind == JSON:
            try:
                refuse_double_keys(body.decode())
            except UnicodeDecodeError as error:
                found = ProblemItem(path="", message=str(error), expected="JSON in UTF-8")
                await problem(422, str(error), [found])(scope, receive, send)
                return
            except TextError as error:
                found = ProblemItem(path="", message=error.reason, expected="each key once")
                await problem(422, error.reason, [found])(scope, receive, send)
                return
        elif body:
            refusal = problem(
                415, f"send the header 'Content-Type: {JSON}' or '{YAML}'; got '{kind[:80]}'"
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """Return the whole body; None if it is over the limit.

        Raises:
            ClientDisconnect: if the client leaves before the body has come.
        """
        pieces, size = [], 0
        while size <= LARGEST_DISCARDED:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece = message.get("body", b"")
            size += len(piece)
            if size <= self._largest:
                pieces.append(piece)
            if not message.get("more_body", False):
                break
        return b"".join(pieces) if size <= self._largest else None


def _replay(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return whole.pop() if whole else await receive()

    return replayed

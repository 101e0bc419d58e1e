"""Limits of a request's body: who may send it, JSON or YAML, and at most one megabyte.

Runs in the service's process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.search_spaces.spec_text import TextError, check_json, read_text
from eigensweep.service.api.answers.errors import ProblemItem, answer_error, problem
from eigensweep.service.api.callers.callers import READING, FindScope, require, tell_audit
from eigensweep.service.record.errors import ScopeError

LARGEST_BODY: Final = 1024 * 1024
MOST_HELD: Final = 16 * LARGEST_BODY
"""Bytes of bodies that one user may have here at once: still on their way, or worked on."""
LARGEST_DISCARDED: Final = 64 * LARGEST_BODY
"""Bytes of a refused body that are read and dropped. Most clients read the answer only after they
have sent the whole body; without this they would see a broken connection instead."""
JSON: Final = "application/json"
YAML: Final = "application/yaml"
"""Source: RFC 9512. Such a body is read as spec files are, and handed on as JSON."""


class BodyLimits:
    """Reads a body only where a route takes it, of who may send it there, and while there is room.

    So 403 to a scope that is too small and 429 to a user who has `MOST_HELD` bytes here are
    answered before any of the body has come. Then it answers 413 to a body over `largest` bytes and
    415 to one that is neither JSON nor YAML, or compressed.

    Bytes are counted as they arrive, so a missing or wrong Content-Length changes nothing. Nothing
    is parsed before the last byte has arrived.
    """

    def __init__(
        self,
        app: ASGIApp,
        find_scope: FindScope,
        refuse: Callable[[Request, ScopeError], Response] = answer_error,
        largest: int = LARGEST_BODY,
    ) -> None:
        self._app = app
        self._find_scope = find_scope
        self._refuse = refuse
        self._largest = largest
        self._held = Counter[str]()
        """Bytes of each user: what was announced, or the most that may come."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        needed = None
        if scope["type"] == "http" and scope["method"] not in READING:
            needed = self._find_scope(scope["method"], scope["path"])
        if needed is None:  # nobody reads a body
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        try:
            user = require(request, needed).user
        except ScopeError as error:
            await self._refuse(request, error)(scope, receive, send)
            return
        size = self._expect(request.headers)
        if size and self._held[user] + size > MOST_HELD:
            words = (
                f"other requests of user '{user}' have bodies of {self._held[user]:,} bytes here, "
                f"and more than {MOST_HELD:,} are not taken at once; send this again when they are "
                "answered"
            )
            tell_audit(request, words)
            refusal = problem(429, words, headers={"Retry-After": "1"})
            await refusal(scope, receive, send)
            return
        self._held[user] += size
        try:
            await self._take(scope, receive, send)
        finally:
            self._held[user] -= size

    def _expect(self, headers: Headers) -> int:
        """Return how many bytes of a body will be held at most."""
        announced = headers.get("content-length")
        if announced is None:
            return self._largest if "transfer-encoding" in headers else 0
        return min(int(announced), self._largest) if announced.isdecimal() else self._largest

    async def _take(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._read_json(scope, receive)
        except ClientDisconnect:
            return  # what it wanted is not known whole, so it is not done
        if isinstance(body, Response):
            await body(scope, receive, send)
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _read_json(self, scope: Scope, receive: Receive) -> bytes | Response:
        """Return a body that is JSON by now, or the answer to one that is not taken.

        Raises:
            ClientDisconnect: if the client leaves before the body has come.
        """
        headers, closed = Headers(scope=scope), {"Connection": "close"}
        if "content-length" in headers and "transfer-encoding" in headers:
            words = "a request has either the header Content-Length or Transfer-Encoding, not both"
            return problem(400, words, headers=closed)
        body = await self._read(receive)
        if body is None:
            return problem(413, f"a body has at most {self._largest:,} bytes", headers=closed)
        coding = headers.get("content-encoding", "").strip().lower() or "identity"
        if body and coding != "identity":
            return problem(415, f"send the body without a Content-Encoding; got '{coding[:80]}'")
        kind = headers.get("content-type", "").split(";", 1)[0].strip().lower()
        if body and kind == YAML:
            try:
                body = json.dumps(read_text(body.decode())).encode()
            except (TextError, UnicodeDecodeError) as error:
                return _refuse(error, "YAML in UTF-8")
            changed = MutableHeaders(scope=scope)
            changed["content-type"], changed["content-length"] = JSON, str(len(body))
        elif body and kind == JSON:
            try:
                check_json(body.decode())
            except (TextError, UnicodeDecodeError) as error:
                return _refuse(error, "JSON in UTF-8, with each key once")
        elif body:
            words = f"send the header 'Content-Type: {JSON}' or '{YAML}'; got '{kind[:80]}'"
            return problem(415, words)
        return body

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
            else:
                pieces.clear()
            if not message.get("more_body", False):
                break
        return b"".join(pieces) if size <= self._largest else None


def _refuse(error: TextError | UnicodeDecodeError, expected: str) -> Response:
    words = str(error)
    if isinstance(error, UnicodeDecodeError):
        code, place = error.object[error.start], error.start
        words = f"the body is not text in utf-8: byte {code:#x} at {place}"
    elif expected.startswith("JSON"):
        words = error.reason
    return problem(422, words, [ProblemItem(path="", message=words, expected=expected)])


def _replay(body: bytes, receive: Receive) -> Receive:
    whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return whole.pop() if whole else await receive()

    return replayed

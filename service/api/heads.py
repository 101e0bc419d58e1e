"""Answers HEAD wherever GET is answered: the same headers, and no body."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

MLFLOW: Final = "/mlflow/"
"""MLflow answers for itself; a file of it would be fetched only to be dropped."""


class HeadAsGet:
    """Asks the application for GET in the place of HEAD. A stream ends where it would begin."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or scope["path"].startswith(MLFLOW):
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

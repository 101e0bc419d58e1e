"""Catalogue and previews without a service: this process answers with the service's own routes.

It loads torch, so it is imported only when no service answers.
"""

from __future__ import annotations

import asyncio

import httpx2
from fastapi import FastAPI

from eigensweep.service.api.app import create_local_app
from eigensweep.service.client import Client
from eigensweep.service.settings import Settings


class LocalClient(Client):
    """A client whose service is this process. It knows models, tasks, presets and previews."""

    def __init__(self) -> None:
        self.url = "http://here"
        app = create_local_app(Settings())
        self._http = httpx2.Client(base_url=self.url, transport=_InProcess(app))


class _InProcess(httpx2.BaseTransport):
    def __init__(self, app: FastAPI) -> None:
        self._app = httpx2.ASGITransport(app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return asyncio.run(self._answer(request))

    async def _answer(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._app.handle_async_request(request)
        content = await answer.aread()
        return httpx2.Response(answer.status_code, headers=answer.headers, content=content)

"""Measures how long requests wait for their answers, and traces those that change something.

Runs in the service's process.
"""

from __future__ import annotations

import time
from typing import Final

from fastapi.routing import iter_route_contexts
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eigensweep.common import traces
from eigensweep.service.api.callers.callers import READING
from eigensweep.service.counters import HTTP_SECONDS

METHODS: Final = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
OTHER: Final = "other"
"""The route of a request for what is not there, or that was refused before; an unknown method."""


class RouteNames:
    """The templates of an application's routes, such as `/v1/experiments/{id}`."""

    def __init__(self) -> None:
        self._templates: dict[int, str] | None = None
        self._folders: list[str] = []

    def find(self, scope: Scope) -> str:
        """Return the template of the route that answers, once it is known; else `OTHER`."""
        if self._templates is None:
            self._learn_routes(scope["app"])
        assert self._templates is not None
        template = self._templates.get(id(scope.get("route")))
        if template is not None:
            return template
        inside = (each for each in self._folders if scope["path"].startswith(f"{each}/"))
        return next((f"{each}/..." for each in inside), OTHER)

    def _learn_routes(self, app: Starlette) -> None:
        """Note the template of every route, with the prefixes under which it was included."""
        self._templates = {}
        for each in iter_route_contexts(app.routes):
            route: BaseRoute = each.original_route
            if isinstance(route, Mount):
                self._folders.append(route.path)
            elif each.path is not None:
                self._templates[id(route)] = each.path


class Latencies:
    """Counts each answer in `HTTP_SECONDS`, under its route's template and never under its path.

    A stream counts when it begins.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = RouteNames()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in METHODS else OTHER
                labels = method, self._names.find(scope), str(message["status"])
                HTTP_SECONDS.labels(*labels).observe(time.perf_counter() - began)
            await send(message)

        await self._app(scope, receive, watched)


class RequestSpans:
    """Makes a span of each request that changes something, below that of who sent it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = RouteNames()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in METHODS - READING:
            await self._app(scope, receive, send)
            return
        parent = Headers(scope=scope).get(traces.TRACEPARENT)
        span, status = traces.OpenSpan("request", parent), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            with span.within():
                await self._app(scope, receive, watched)
        finally:
            span.rename(f"{scope['method']} {self._names.find(scope)}")
            span.end(status=status)

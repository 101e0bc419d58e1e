"""MLflow's pages and API below /mlflow: behind the service's own access, on the same origin.

Runs in the service's process. Drivers do not come this way: they ask MLflow's server directly.
"""

from __future__ import annotations

import re
from typing import Final

import httpx2
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eigensweep.service.api.callers import READING, require
from eigensweep.service.api.errors import problem
from eigensweep.service.record.accounts import ScopeName
from eigensweep.service.settings import Mlflow

PLACE: Final = "/mlflow"
"""Where the service has MLflow's pages."""
TIMEOUT: Final = httpx2.Timeout(60.0, connect=5.0)
ASKED: Final = re.compile(
    r"/(graphql|(ajax-)?api/\d\.0/mlflow/("
    r"[a-z-]+/search(-datasets)?|traces/(metrics|batchGetInfos|calculate-filter-correlation)))$"
)
"""What MLflow's pages ask for with a body, without changing anything."""
OF_ONE_CONNECTION: Final = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host"),
}
"""Headers that are not handed on. Source: RFC 9110, section 7.6.1."""
OF_THE_SERVICE: Final = {"authorization", "cookie", "origin", "referer", "set-cookie"}
"""Headers between a browser and the service; access was checked before."""


class MlflowProxy:
    """Hands requests on to MLflow's server with the secret that it wants."""

    def __init__(self, mlflow: Mlflow) -> None:
        self._client = httpx2.AsyncClient(timeout=TIMEOUT, trust_env=False)
        self._address = httpx2.URL(mlflow.uri)
        self._secret = f"Bearer {mlflow.token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope, receive)
            require(request, find_needed(request.method, scope["path"].removeprefix(PLACE)))
            try:
                answer = await self._ask(request)
            except ClientDisconnect:
                return
            await answer(scope, receive, send)

    async def _ask(self, request: Request) -> Response:
        path = request.scope.get("raw_path", request.url.path.encode()).partition(b"?")[0]
        path = path.removeprefix(PLACE.encode())
        query = request.scope["query_string"]
        headers = [pair for pair in request.headers.items() if _is_handed_on(pair[0])]
        has_body = request.method not in ("GET", "HEAD", "OPTIONS")
        asked = self._client.build_request(
            request.method,
            self._address.copy_with(raw_path=path + (b"?" + query if query else b"")),
            headers=[*headers, ("Authorization", self._secret)],
            content=request.stream() if has_body else None,
        )
        try:
            answer = await self._client.send(asked, stream=True)
        except httpx2.HTTPError as error:
            return problem(
                503, f"MLflow does not answer ({error or type(error).__name__}); try again soon"
            )
        response = StreamingResponse(
            answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers.multi_items()
            if _is_handed_on(name)
        ]
        return response


def find_needed(method: str, path: str) -> ScopeName:
    """Return the scope that a request to MLflow needs: `admin` to delete, `submit` to change.

    >>> find_needed("POST", "/ajax-api/2.0/mlflow/runs/search"), find_needed("GET", "/")
    ('read', 'read')
    >>> find_needed("POST", "/api/2.0/mlflow/runs/set-tag")
    'submit'
    >>> find_needed("POST", "/api/2.0/mlflow/runs/delete"), find_needed("DELETE", "/x")
    ('admin', 'admin')
    """
    if method in READING or (method == "POST" and ASKED.match(path)):
        return "read"
    return "admin" if method == "DELETE" or path.endswith("/delete") else "submit"


def _is_handed_on(header: str) -> bool:
    return header.lower() not in OF_ONE_CONNECTION | OF_THE_SERVICE

"""MLflow's pages and API below /mlflow: behind the service's own access, on the same origin.

Runs in the service's process. Drivers do not come this way: they ask MLflow's server directly.
Users read here, and change names, notes and tags of what is their own (`mlflow_requests`).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Final

import httpx2
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from eigensweep.service.api.answers.errors import ProblemItem, answer_error, problem
from eigensweep.service.api.callers.callers import READING, Caller, require, tell_audit
from eigensweep.service.api.mlflow import mlflow_requests
from eigensweep.service.record.errors import NotAllowedError
from eigensweep.service.record.record import Record
from eigensweep.service.record.users.accounts import ScopeName
from eigensweep.service.settings import Mlflow
from eigensweep.workers.tracking.mlflow_runs import EXPERIMENT

PLACE: Final = "/mlflow"
"""Where the service has MLflow's pages."""
TIMEOUT: Final = httpx2.Timeout(60.0, connect=5.0)
"""Seconds between two pieces of an answer, and until it begins."""
OF_ONE_CONNECTION: Final = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host"),
}
"""Headers that are not handed on. Source: RFC 9110, section 7.6.1."""
OF_THE_SERVICE: Final = {"authorization", "cookie", "origin", "referer", "set-cookie"}
"""Headers between a browser and the service; access was checked before."""
OF_THE_BODY: Final = {"content-length", "content-encoding", "content-type", "expect"}
"""Headers of a request's body, which is written anew."""
JSON: Final = ("Content-Type", "application/json")
ID: Final = re.compile(r"[\w-]{1,64}", re.ASCII)
WHAT_WORKS: Final = (
    "MLflow's pages are for reading here, and for names, notes and tags of runs of your own. "
    "Experiments are posted, extended and deleted with `eigensweep` or at /v1/experiments"
)


class _WrongBodyError(ValueError):
    """A request's body is not what MLflow takes."""


class MlflowProxy:
    """Hands requests on to MLflow's server with the secret that it wants.

    What it does not know it refuses. The body of a change is written anew with the fields that it
    may have, so that MLflow reads nothing in it that was not looked at here.
    """

    def __init__(self, mlflow: Mlflow, record: Record) -> None:
        self._client = httpx2.AsyncClient(timeout=TIMEOUT, trust_env=False)
        self._address = httpx2.URL(mlflow.uri)
        self._secret = ("Authorization", f"Bearer {mlflow.token}")
        self._record = record

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except ClientDisconnect:
            return
        except NotAllowedError as error:
            answer = answer_refusal(request, error)
        except _WrongBodyError as error:
            answer = problem(422, str(error), [ProblemItem(path="", message=str(error))])
        except (httpx2.HTTPError, TimeoutError) as error:
            words = str(error) or type(error).__name__
            answer = problem(503, f"MLflow does not answer ({words}); try again soon")
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        """Return MLflow's answer to a request that is allowed.

        Raises:
            NotAllowedError: says what is not allowed, and what works.
            _WrongBodyError: says what is wrong with the body.
        """
        path = request.scope["path"].removeprefix(PLACE)
        change = (
            mlflow_requests.CHANGES.get(mlflow_requests.name_request(path) or "")
            if request.method == "POST"
            else None
        )
        caller = require(request, "read" if change is None else change.scope)
        if change is not None:
            return await self._ask(request, await self._check(request, caller, change))
        if request.method == "GET" and mlflow_requests.name_request(path) == "gateway-proxy":
            return JSONResponse({"endpoints": []})  # a refusal would be shown as an error
        if not mlflow_requests.is_read(request.method, path):
            raise NotAllowedError(f"{request.method} {path[:200]} is refused. {WHAT_WORKS}")
        if request.method in READING:
            return await self._ask(request, None)
        content = await _read_body(request)
        if path == mlflow_requests.GRAPHQL:
            if not mlflow_requests.is_query(query := str(content.get("query", ""))):
                raise NotAllowedError(f"a query that changes something is refused. {WHAT_WORKS}")
            content["query"] = query
        return await self._ask(request, content)

    async def _check(
        self, request: Request, caller: Caller, change: mlflow_requests.MlflowChange
    ) -> dict[str, str]:
        """Return the body of a change that the caller may make."""
        content = await _read_body(request)
        if "run_uuid" in content:  # MLflow's older name, which its pages send
            content.setdefault("run_id", content.pop("run_uuid"))
        if others := sorted(content.keys() - set(change.fields)):
            raise NotAllowedError(
                f"this takes {', '.join(change.fields)} here, and not {others[0][:80]!r}. "
                f"{WHAT_WORKS}"
            )
        texts = {name: text for name, text in content.items() if isinstance(text, str)}
        for field in change.fields:
            if field not in texts:
                raise _WrongBodyError(f"{field!r} is to be a text; got {content.get(field)!r:.80}")
        subject = texts[change.fields[0]]
        if not ID.fullmatch(subject):
            raise _WrongBodyError(f"MLflow has no {change.fields[0]} like {subject[:80]!r}")
        if (key := texts.get("key")) is not None and not mlflow_requests.is_own_tag(key):
            raise NotAllowedError(
                f"the tag {key[:80]!r} is one by which MLflow or drivers work. {WHAT_WORKS}"
            )
        if change.scope != "admin" and not caller.may("admin"):
            is_run = change.fields[0] == "run_id"
            await (self._require_run if is_run else self._require_project)(caller, subject)
        tell_audit(request, f"{change.fields[0]} {subject}{f' {key[:80]!r}' if key else ''}")
        return texts

    async def _require_run(self, caller: Caller, run_id: str) -> None:
        """Refuse a caller to whom the experiment of a run does not belong."""
        experiment = await self._find_experiment(run_id)
        owner = await run_in_threadpool(self._record.find_owner, experiment)
        if owner is None:
            raise NotAllowedError(f"run {run_id} is of no experiment of this service")
        caller.require_owner(owner, f"run {run_id}")

    async def _find_experiment(self, run_id: str) -> str:
        """Return which experiment of ours a run is of, by its tag, which drivers alone write."""
        address = self._address.copy_with(raw_path=b"/api/2.0/mlflow/runs/get")
        answer = await self._client.get(address, params={"run_id": run_id}, headers=[self._secret])
        if answer.status_code == 404:
            return ""
        try:
            tags = answer.raise_for_status().json()["run"]["data"].get("tags", [])
            return next((str(tag["value"]) for tag in tags if tag["key"] == EXPERIMENT), "")
        except (ValueError, KeyError, TypeError) as error:
            raise httpx2.HTTPError(f"it does not tell of run {run_id}") from error

    async def _require_project(self, caller: Caller, project: str) -> None:
        """Refuse a caller to whom not all experiments of a project belong."""
        owners = await run_in_threadpool(self._record.list_owners, project)
        if not owners:
            raise NotAllowedError("this project has no experiment of this service")
        for owner in owners:
            caller.require_owner(owner, "an experiment of this project")

    async def _ask(self, request: Request, content: Mapping[str, object] | None) -> Response:
        path = request.scope.get("raw_path", request.url.path.encode()).partition(b"?")[0]
        path = path.removeprefix(PLACE.encode())
        query = request.scope["query_string"]
        headers = [
            pair
            for pair in request.headers.items()
            if _is_handed_on(pair[0]) and pair[0].lower() not in OF_THE_BODY
        ]
        asked = self._client.build_request(
            request.method,
            self._address.copy_with(raw_path=path + (b"?" + query if query else b"")),
            headers=[*headers, self._secret, *((JSON,) if content is not None else ())],
            content=None if content is None else json.dumps(content).encode(),
        )
        async with asyncio.timeout(TIMEOUT.read):
            answer = await self._client.send(asked, stream=True)
        response = StreamingResponse(
            answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose)
        )
        response.raw_headers = [
            (name.encode("latin-1"), value.encode("latin-1"))
            for name, value in answer.headers.multi_items()
            if _is_handed_on(name)
        ]
        return response


def find_scope(method: str, path: str) -> ScopeName | None:
    """Return the scope of who may send a body to a path below `PLACE`; None: it reads none there.

    >>> find_scope("POST", "/mlflow/api/2.0/mlflow/runs/search")
    'read'
    >>> find_scope("POST", "/mlflow/api/2.0/mlflow/runs/log-batch") is None
    True
    """
    place, _, asked = path.partition(PLACE)
    if place or method != "POST":
        return None
    change = mlflow_requests.CHANGES.get(mlflow_requests.name_request(asked) or "")
    if change is not None:
        return change.scope
    return "read" if mlflow_requests.is_read(method, asked) else None


async def _read_body(request: Request) -> dict[str, object]:
    """Return a body, whose size and kind `BodyLimits` has checked."""
    try:
        content = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise _WrongBodyError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise _WrongBodyError("the body is to be an object with named fields")
    return content


def answer_refusal(request: Request, error: NotAllowedError) -> Response:
    """Return the answer to who may not do something; MLflow's pages show one below `PLACE`, too."""
    is_here = request.scope["path"].startswith(f"{PLACE}/")
    more = {"error_code": "PERMISSION_DENIED", "message": str(error)} if is_here else None
    return answer_error(request, error, more)


def _is_handed_on(header: str) -> bool:
    return header.lower() not in OF_ONE_CONNECTION | OF_THE_SERVICE

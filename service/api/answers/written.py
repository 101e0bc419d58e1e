"""Routes that describe their errors, choose their threads, and write their answers as JSON there.

Runs in the service's process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from fastapi import Depends, Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Header, Path
from fastapi.routing import APIRoute
from pydantic import BaseModel

from eigensweep.service.api.answers import writers
from eigensweep.service.api.answers.errors import describe_errors


class DescribedRoute(APIRoute):
    """A route whose page lists the errors that follow from its method, path and parameters.

    `responses` names all others. What every route with a caller can answer comes from the router.
    A parameter that the route does not have is refused: it may be a filter with a slip in its name.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        checks = [*(options.pop("dependencies", None) or ()), Depends(self._refuse_unknown)]
        super().__init__(path, endpoint, dependencies=checks, **options)
        has_body, has_place = "POST" in (self.methods or ()), "{" in path
        statuses = [400, 413, 415] if has_body else []
        if has_place:
            statuses.append(404)
        statuses.append(422)  # at least of an unknown parameter
        self.responses = describe_errors(*statuses) | self.responses

    async def _refuse_unknown(self, request: Request) -> None:
        """Raise RequestValidationError for parameters of a query that this route does not have."""
        fields = get_flat_params(self.dependant)
        known = [f.alias for f in fields if not isinstance(f.field_info, Path | Header)]
        problem = {"type": "extra_forbidden", "msg": "unknown", "ctx": {"available": known}}
        found = [name for name in request.query_params if name not in known]
        if found:
            raise RequestValidationError([problem | {"loc": ("query", name)} for name in found])


class ServiceRoute(DescribedRoute):
    """A route whose function runs in a thread that writes, unless it only answers GET."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = set(options.get("methods") or ("GET",))
        if methods != {"GET"} and not inspect.iscoroutinefunction(endpoint):
            endpoint = _run_among_writers(endpoint)
        super().__init__(path, endpoint, **options)


class WrittenRoute(ServiceRoute):
    """A route whose function returns a model, and the model is the answer.

    FastAPI would check the model once more, in another thread, and write it in the thread that
    serves all connections. The page of the API describes the answer as for every route. Status and
    headers come from the function's parameter `response`, where it has one, as with FastAPI.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, _write(endpoint, options.get("status_code") or 200), **options)


def _run_among_writers(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def answer(*arguments: Any, **named: Any) -> Any:
        return await writers.WRITERS.run(partial(endpoint, *arguments, **named))

    return answer


def _write(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    @wraps(endpoint)
    def answer(*arguments: Any, **named: Any) -> Any:
        found = endpoint(*arguments, **named)
        if not isinstance(found, BaseModel):
            return found
        given: Response | None = named.get("response")
        return Response(
            found.model_dump_json(by_alias=True),
            status if given is None else given.status_code or status,
            None if given is None else given.headers,
            media_type="application/json",
        )

    return answer

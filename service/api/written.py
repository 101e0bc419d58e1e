"""Routes that write their answers as JSON where they make them. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from fastapi import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel


class WrittenRoute(APIRoute):
    """A route that reads: its function returns a model, and the model is the answer.

    FastAPI would check the model once more, in another thread, and write it in the thread that
    serves all connections. The page of the API describes the answer as for every route.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods = options.get("methods")
        written = _write(endpoint) if methods is not None and set(methods) == {"GET"} else endpoint
        super().__init__(path, written, **options)


def _write(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    def answer(*arguments: Any, **named: Any) -> Any:
        found = endpoint(*arguments, **named)
        if not isinstance(found, BaseModel):
            return found
        return Response(found.model_dump_json(by_alias=True), media_type="application/json")

    return answer

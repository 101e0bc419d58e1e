"""Makes an answer of an error: one table of statuses, and one shape, `application/problem+json`.

Runs in the service's process. Source: RFC 9457.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from sqlalchemy.exc import DataError, SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from eigensweep.search_spaces.checks.mistakes import find_mistakes
from eigensweep.search_spaces.checks.problems import list_problems, shorten_list
from eigensweep.search_spaces.errors import (
    MOST_TOLD,
    SpecError,
    UnknownPresetError,
    UnknownSuiteError,
    UnreadableSpecError,
    did_you_mean,
    end_of_sentence,
    shorten,
)
from eigensweep.service.api.answers.writers import BusyError
from eigensweep.service.record.errors import (
    ConflictError,
    IdempotencyKeyReusedError,
    NotAllowedError,
    NotFoundError,
    NotLeadingError,
    NotOwnerError,
    QuotaExceededError,
    ScopeError,
)
from eigensweep.service.record.sql.database import WrongSchemaError, is_away, is_damaged, is_full
from eigensweep.store.places.durable_files import StorageError

logger = logging.getLogger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
URN: Final = "urn:eigensweep:problem:"

BUG: Final = "this is a bug; the service's console has the traceback"

SPEC_PATH: Final = re.compile(r"/v1/experiments(/preview|/[^/]+/extend)?")
"""Paths that take a spec."""


class NotInCatalogueError(NotFoundError):
    """No model, task or analysis has this name; `reason` says why, if a package offers it."""

    def __init__(
        self, kind: str, name: str, available: Sequence[str], reason: str | None = None
    ) -> None:
        super().__init__(
            f"there is no {kind} '{shorten(name)}'{f' ({reason})' if reason else ''}; "
            f"there are {', '.join(sorted(available))}"
        )
        self.name = name
        self.available = sorted(available)


STATUS: Final[dict[type[Exception], int]] = {
    NotFoundError: 404,
    UnknownPresetError: 404,
    UnknownSuiteError: 404,
    NotAllowedError: 403,
    ConflictError: 409,
    UnreadableSpecError: 409,
    IdempotencyKeyReusedError: 422,
    NotLeadingError: 503,
    SpecError: 422,
    StorageError: 503,
    BusyError: 503,
}
KINDS: Final[dict[type[Exception], str]] = {
    ScopeError: "scope-too-small",
    NotOwnerError: "of-another-user",
    QuotaExceededError: "quota-exceeded",
    IdempotencyKeyReusedError: "idempotency-key-reused",
    NotLeadingError: "not-leading",
    StorageError: "store-away",
    BusyError: "busy",
}
"""How the `type` of a problem ends where the status does not say enough; else as its title."""


class ProblemItem(BaseModel):
    """One thing that is wrong with a request."""

    path: str = Field(description="Dotted path into the body, or the name of a parameter")
    message: str
    expected: str | None = None
    got: Any = Field(None, description="The value that came; a long one is cut short")
    available: list[str] | None = Field(None, description="The names that exist")


class Problem(BaseModel):
    """An error, for people (`detail`, `errors`) and for programs (`type`, `status`)."""

    type: str = Field(description="A URN; its last part is for programs")
    title: str
    status: int
    detail: str
    errors: list[ProblemItem] = []


EXAMPLE: Final = {
    "type": "urn:eigensweep:problem:unprocessable-content",
    "title": "Unprocessable Content",
    "status": 422,
    "detail": "scornn has no 'negative_one'; it has ...; did you mean 'model.negative_ones'?",
    "errors": [
        {
            "path": "search.space.model.negative_one",
            "message": "scornn has no 'negative_one'; it has ...; "
            "did you mean 'model.negative_ones'?",
            "expected": "a field of scornn",
            "got": "model.negative_one",
            "available": ["model.hidden_size", "model.negative_ones"],
        }
    ],
}


Responses = dict[int | str, dict[str, object]]
"""The type of FastAPI's parameter `responses`."""


def describe_errors(*statuses: int) -> Responses:
    """Return the OpenAPI description of the errors that a route answers with."""
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": EXAMPLE}
    return {
        status: {
            "model": Problem,
            "description": _title(status),
            "content": {MEDIA_TYPE: schema},
        }
        for status in statuses
    }


def describe_repeat(
    model: type[BaseModel],
    words: str = "It was posted before; the answer has its present state",
) -> Responses:
    """Return the OpenAPI description of the answer to a second post of the same."""
    return {200: {"model": model, "description": words}}


def problem(
    status: int,
    detail: str,
    errors: Sequence[ProblemItem] = (),
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    kind: str | None = None,
) -> Response:
    """Return an error as problem+json; fields of `errors` that are None are left out.

    `more` are members for readers of other kinds of errors. `kind` is one of `KINDS`.
    """
    title = _title(status)
    content = Problem(
        type=f"{URN}{kind or title.lower().replace(' ', '-')}",
        title=title,
        status=status,
        detail=detail,
        errors=list(errors),
    ).model_dump(exclude_none=True)
    content |= more or {}
    body = json.dumps(content, ensure_ascii=False, default=str).encode("utf-8", "replace")
    return Response(body, status, headers, MEDIA_TYPE)


def answer_errors(app: FastAPI) -> None:
    """Make every error of an application a problem+json."""
    for kind in (*STATUS, RequestValidationError, HTTPException, SQLAlchemyError, Exception):
        app.add_exception_handler(kind, answer_error)


def answer_error(
    request: Request, error: Exception, more: Mapping[str, str] | None = None
) -> Response:
    """Return the answer to a request that raised `error`; `more` as in `problem`."""
    if isinstance(error, tuple(STATUS)):
        return _answer_known_error(request, error, more)
    if isinstance(error, RequestValidationError):
        return _answer_invalid_request(request, error)
    if isinstance(error, HTTPException):
        return _answer_http_error(request, error)
    if isinstance(error, SQLAlchemyError):
        return _answer_database_error(request, error)
    return _answer_bug(request, error)


def _title(status: int) -> str:
    return {413: "Content Too Large", 422: "Unprocessable Content"}.get(
        status, HTTPStatus(status).phrase
    )


def _answer_known_error(
    request: Request, error: Exception, more: Mapping[str, str] | None
) -> Response:
    bases = type(error).__mro__
    status = next(STATUS[base] for base in bases if base in STATUS)
    kind = next((KINDS[base] for base in bases if base in KINDS), None)
    if isinstance(error, NotAllowedError):
        request.state.told = str(error)  # for the audit log
    words, found = str(error), []
    if isinstance(error, SpecError):
        found = [ProblemItem(**one) for one in shorten_list(list_problems(error))]
    elif isinstance(error, NotInCatalogueError):
        got, available = shorten(error.name), error.available
        found = [ProblemItem(path="name", message=words, got=got, available=available)]
    elif isinstance(error, IdempotencyKeyReusedError):
        found = [ProblemItem(path="Idempotency-Key", message=words)]
    headers = {"Retry-After": "5"} if status == 503 else None
    return problem(status, _summarise(found) or words, found, headers, more, kind)


def _answer_invalid_request(request: Request, error: RequestValidationError) -> Response:
    rest = error.errors()
    found = _find_mistakes(request, error)
    if found:
        rest = [one for one in rest if one["loc"][0] != "body"]
    found += [_describe(one) for one in rest]
    return problem(422, _summarise(found), found)


def _find_mistakes(request: Request, error: RequestValidationError) -> list[ProblemItem]:
    """Return all that is wrong with a posted spec, in the words of `search_spaces`."""
    is_spec = SPEC_PATH.fullmatch(request.url.path) and isinstance(error.body, dict)
    if not is_spec or all(one["loc"][0] != "body" for one in error.errors()):
        return []
    mistakes = find_mistakes(error.body, request.app.state.settings.corpora)
    return [ProblemItem(**one) for one in shorten_list(mistakes)]


def _describe(error: Mapping[str, Any]) -> ProblemItem:
    """Return one of FastAPI's errors about a request's body or parameters in plain words."""
    place, kind = error["loc"], error["type"]
    path = ".".join(str(part) for part in place[1:])
    context = error.get("ctx", {})
    if kind == "json_invalid":
        message = (
            f"the body is not JSON: {context.get('error', error['msg'])} (at character {path})"
        )
        return ProblemItem(path="", message=message, expected="JSON")
    if kind == "extra_forbidden":
        known: list[str] | None = context.get("available")
        message = f"there is no parameter '{shorten(path)}' here"
        if known is not None:
            message += f"; there are {', '.join(known)}" if known else ", and no other one"
            message += did_you_mean(path, known)
        return ProblemItem(path=path, message=message, available=known)
    if kind == "missing" and path:
        return ProblemItem(path=path, message=f"'{shorten(path)}' is missing")
    if kind == "missing" and place[0] == "body":
        return ProblemItem(path="", message="the body is empty", expected="JSON or YAML")
    if kind == "model_attributes_type":
        error = {**error, "msg": "should be an object with named fields"}
    wish, given = end_of_sentence(str(error["msg"])), error.get("input")
    names = [part for part in place[1:] if isinstance(part, str)]
    about = f"'{shorten(names[-1])}'" if names else "the body"
    got = shorten(given)
    words = f"{about} {wish}" if wish.startswith("should ") else wish
    if not isinstance(given, dict | list):  # which `wish` describes
        words += f"; got {json.dumps(got, ensure_ascii=False) if given is None else repr(got)}"
    return ProblemItem(path=path, message=words, expected=wish, got=got)


def _summarise(found: Sequence[ProblemItem]) -> str:
    if len(found) < 2:
        return "".join(one.message for one in found)
    count = str(len(found)) if len(found) <= MOST_TOLD else f"more than {MOST_TOLD}"
    return f"{count} problems, see 'errors'; nothing was changed"


def _answer_http_error(request: Request, error: HTTPException) -> Response:
    detail, headers = error.detail, dict(error.headers or {})
    if error.status_code == 404:
        path = shorten(request.url.path)
        detail = f"there is nothing at {path}; the API is below /v1, and /docs lists what there is"
    if error.status_code == 405:
        headers["Allow"] = _find_methods(request) or "GET, HEAD"  # pages are not documented
        detail = f"{request.url.path} does not take {request.method}; it takes {headers['Allow']}"
    return problem(error.status_code, detail, headers=headers)


def _find_methods(request: Request) -> str:
    """Return the methods at a request's path, as the OpenAPI page lists them.

    `/v1/experiments/bulk` is a path of the page, and has not the methods of an experiment.
    """
    paths, found = request.app.openapi()["paths"], set[str]()
    if request.url.path in paths:
        return ", ".join(sorted(method.upper() for method in paths[request.url.path]))
    for template, methods in paths.items():
        pattern = re.sub(r"\\{[^}]+\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, request.url.path):
            found |= {method.upper() for method in methods}
    return ", ".join(sorted(found))


def _find_subject(request: Request) -> dict[str, str]:
    """Return the experiment and the trial that a request names, for the log."""
    names = {"id": "experiment", "number": "trial"}
    return {names[name]: value for name, value in request.path_params.items() if name in names}


def tell_database_error(error: SQLAlchemyError) -> tuple[int, str]:
    """Return the status and the words of an error of the record's database."""
    if isinstance(error, WrongSchemaError):
        return 500, str(error)
    if isinstance(error, DataError):
        return 422, "the request has a value that no database can hold, such as U+0000"
    if is_damaged(error):
        return 500, "the record is damaged; /readyz says more, and what to do"
    if not is_away(error):
        return 500, BUG
    what = "has no room on its disk" if is_full(error) else "does not answer"
    return 503, f"the database of the record {what}"


def _answer_database_error(request: Request, error: SQLAlchemyError) -> Response:
    status, words = tell_database_error(error)
    if words == BUG:
        return _answer_bug(request, error)
    if status != 422:
        told = "database status=%d path=%s error=%s"
        level = logging.WARNING if status == 503 else logging.ERROR
        logger.log(level, told, status, request.url.path, error, extra=_find_subject(request))
    if status != 503:
        return problem(status, words)
    detail = f"{words}; nothing was changed, try again soon"
    return problem(503, detail, headers={"Retry-After": "5"})


def _answer_bug(request: Request, error: Exception) -> Response:
    subject = _find_subject(request)
    logger.error("bug path=%s", request.url.path, exc_info=error, extra=subject)
    return problem(500, BUG)

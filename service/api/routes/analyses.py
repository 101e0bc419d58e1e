"""Post, list, look at and cancel analyses, fetch their files, and list the kinds of analyses.

Runs in the service's process.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Body, Path, Query, Response
from fastapi.responses import FileResponse
from pydantic import Field

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.base import Kind
from eigensweep.analyses.messages import FILES
from eigensweep.service.api.answers.errors import (
    NotInCatalogueError,
    describe_errors,
    describe_repeat,
)
from eigensweep.service.api.answers.paging import cut, decode
from eigensweep.service.api.answers.schemas import AnswerModel, Items, Page, PageAsked
from eigensweep.service.api.answers.written import DescribedRoute, ServiceRoute
from eigensweep.service.api.callers.callers import SUBMIT
from eigensweep.service.api.parts import Service, TheService
from eigensweep.service.api.routes.catalogue import JsonSchema, Listing, Name, describe
from eigensweep.service.record.requests.analyses import AnalysisRecord, AnalysisState, OptionsJson
from eigensweep.service.record.requests.analysis_requests import AnalysisRequest, complete_request

router = APIRouter(tags=["analyses"], route_class=ServiceRoute)
kinds = APIRouter(tags=["analyses"], route_class=DescribedRoute)
"""What is described from the code alone."""

AnalysisId = Annotated[str, Path(min_length=1, max_length=32, description="As the post gave it")]
SORT: Final = "-created_at"

KINDS: Final = ("application/json", "text/csv", "image/png", "image/svg+xml")
TYPES: Final = dict(zip(FILES, KINDS, strict=True))
"""The media types of an analysis's files."""


class AnalysisLinks(AnswerModel):
    """Paths and addresses of an analysis."""

    self: str
    cancel: str
    files: dict[str, str] = Field(description="By name; empty until it is finished")
    mlflow: str | None = Field(
        description="The run on MLflow's pages that has its files as artifacts"
    )


class AnalysisNow(AnswerModel):
    """An analysis: its request, and its state."""

    id: str = Field(description="The digest of the request: the same request has the same id")
    name: str
    experiment: str | None
    trial: int | None
    options: OptionsJson = Field(description="Every option, defaults filled in")
    state: AnalysisState
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None = Field(description="Why it failed")
    mlflow_problem: str | None = Field(
        description="Why MLflow does not have it; post the same request again to deliver it"
    )
    links: AnalysisLinks


class AnalysisKindListing(Listing):
    """A kind of analysis in a list."""

    of: Kind = Field(description="What it examines: a trial, an experiment, or matrices of its own")


class AnalysisKindEntry(AnalysisKindListing):
    """A kind of analysis in full."""

    description: str
    result_version: int = Field(description="Raised when its results change")
    schema_: JsonSchema = Field(alias="schema", description="JSON Schema of its `options`")


class AnalysisQuery(PageAsked):
    """Selects analyses."""

    name: str | None = Field(None, description="Only of this kind")
    experiment: str | None = Field(None, description="Only of this experiment and its trials")
    trial: int | None = Field(None, description="Only of trials of this number")
    state: list[AnalysisState] = Field([], description="Only in these states")


@router.post(
    "/analyses",
    status_code=201,
    summary="Post an analysis",
    dependencies=[SUBMIT],
    responses=describe_errors(404, 409) | describe_repeat(AnalysisNow),
)
def post_analysis(
    service: TheService,
    request: Annotated[AnalysisRequest, Body()],
    response: Response,
) -> AnalysisNow:
    """Check a request and queue it. A request that cannot be met is refused here.

    The same request gives the same analysis. It is queued again if it failed or was cancelled, if
    MLflow does not have it, or if its files were removed.
    """
    service.record.require_to_lead()
    spec = service.store.ask(lambda store: complete_request(request, service.record, store.place))
    record, is_new = service.analyses.add(spec)
    answer = _make_answer(service, record)
    response.headers["Location"] = answer.links.self
    if not is_new:
        response.status_code = 200
    return answer


@router.get("/analyses", summary="List analyses")
def list_analyses(
    service: TheService, query: Annotated[AnalysisQuery, Query()]
) -> Page[AnalysisNow]:
    """Return the analyses, the newest first."""
    after = decode(SORT, query.cursor, (float, str))
    before = None if after is None else (float(after[0]), str(after[1]))

    def matches(each: AnalysisRecord) -> bool:
        return (
            query.name in (None, each.name)
            and query.experiment in (None, each.experiment)
            and query.trial in (None, each.trial)
            and (not query.state or each.state in query.state)
            and (before is None or (each.created_at, each.id) < before)
        )

    found = service.analyses.list(matches)
    page, cursor = cut(found, query.limit, SORT, lambda last: [last.created_at, last.id])
    return Page(items=[_make_answer(service, each) for each in page], next_cursor=cursor)


@router.get("/analyses/{id}", summary="Look at an analysis")
def get_analysis(service: TheService, id: AnalysisId) -> AnalysisNow:
    """Return an analysis with its state and the links of its files."""
    return _make_answer(service, service.analyses.get(id))


@router.post(
    "/analyses/{id}/cancel",
    status_code=202,
    summary="Cancel an analysis",
    dependencies=[SUBMIT],
    responses=describe_errors(409),
)
def cancel_analysis(service: TheService, id: AnalysisId) -> AnalysisNow:
    """Cancel an analysis; its process ends within seconds. Post it again to carry it out."""
    service.record.require_to_lead()
    return _make_answer(service, service.analyses.cancel(id))


@router.get(
    "/analyses/{id}/files/{name}",
    summary="Fetch a file of an analysis",
    response_class=FileResponse,
    responses={
        200: {
            "description": "The numbers as JSON or as a table, or the picture",
            "content": {kind: {} for kind in TYPES.values()},
        }
    },
)
def get_file(
    service: TheService, id: AnalysisId, name: Annotated[str, Path(max_length=60)]
) -> FileResponse:
    """Return `result.json`, `table.csv`, `figure.png` or `figure.svg` of a finished analysis."""
    path = service.analyses.file(id, name)
    headers = {"X-Content-Type-Options": "nosniff"}
    return FileResponse(path, media_type=TYPES[name], headers=headers)


@kinds.get("/analysis-kinds", summary="List kinds of analyses")
def list_kinds() -> Items[AnalysisKindListing]:
    """Return the kinds of analyses."""
    items = [
        AnalysisKindListing(**dict(describe(name, type(a))), of=a.of)
        for name, a in ANALYSES.items()
    ]
    return Items(items=items)


@kinds.get("/analysis-kinds/{name}", summary="Look at a kind of analysis")
def get_kind(name: Name) -> AnalysisKindEntry:
    """Return what an analysis shows, and the options it takes."""
    analysis = ANALYSES.get(name)
    if analysis is None:
        raise NotInCatalogueError("analysis", name, list(ANALYSES))
    return AnalysisKindEntry(
        **dict(describe(name, type(analysis))),
        of=analysis.of,
        description=type(analysis).__doc__ or "",
        result_version=analysis.result_version,
        schema=analysis.Options.model_json_schema(),
    )


def _make_answer(service: Service, record: AnalysisRecord) -> AnalysisNow:
    here = f"/v1/analyses/{record.id}"
    finished = record.state == "finished"
    return AnalysisNow.made_of(
        record,
        links=AnalysisLinks(
            self=here,
            cancel=f"{here}/cancel",
            files={name: f"{here}/files/{name}" for name in FILES} if finished else {},
            mlflow=service.views.run(record.mlflow_run, None),
        ),
    )

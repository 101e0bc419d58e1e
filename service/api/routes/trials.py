"""List an experiment's trials and look at one. Runs in the service's process."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from eigensweep.service.api.errors import describe_errors
from eigensweep.service.api.paging import decode, encode
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.api.schemas import Page, TrialNow, TrialSummary
from eigensweep.workers.shared.states import TrialState

router = APIRouter(tags=["trials"])


class TrialQuery(BaseModel):
    """Selects trials, and their order."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: list[TrialState] = Field([], description="Only in these states")
    arm: str | None = Field(None, description="Only of this arm")
    sort: Literal["number", "-number", "value"] = Field(
        "number", description="`value`: the best first, trials without a rank last"
    )
    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = Field(
        None, max_length=1000, description="`next_cursor` of the page before"
    )


@router.get(
    "/experiments/{id}/trials",
    summary="List trials",
    responses=describe_errors(401, 404, 422, 503),
)
def list_trials(
    service: TheService, id: ExperimentId, query: Annotated[TrialQuery, Query()]
) -> Page[TrialSummary]:
    """Return the trials of an experiment, without configurations, reports and attempts."""
    by_value = query.sort == "value"
    found = service.record.trials(
        id,
        states=query.state,
        arm=query.arm,
        sort=query.sort,
        limit=query.limit + 1,
        after=decode(query.sort, query.cursor, (float, int) if by_value else (int,)),
    )
    page, more = found[: query.limit], len(found) > query.limit
    cursor = None
    if more:
        last = page[-1].trial
        cursor = encode(query.sort, [last.rank, last.number] if by_value else [last.number])
    return Page(items=[service.views.summary(each) for each in page], next_cursor=cursor)


@router.get(
    "/experiments/{id}/trials/{number}",
    summary="Look at a trial",
    responses=describe_errors(401, 404, 422, 503),
)
def get_trial(
    service: TheService, id: ExperimentId, number: Annotated[int, Path(ge=0, le=2**31 - 1)]
) -> TrialNow:
    """Return a trial with its configuration, rung reports, attempts and result."""
    return service.views.trial(service.record.trial(id, number))

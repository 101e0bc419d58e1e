"""List an experiment's trials and look at one. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Response
from pydantic import Field

from eigensweep.protocol.states import TrialState
from eigensweep.results.trial_rows import Row, make_frame, make_row, write_parquet
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.paging import Part, cut, decode
from eigensweep.service.api.answers.schemas import Page, PageAsked, TrialNow, TrialSummary
from eigensweep.service.api.answers.written import WrittenRoute
from eigensweep.service.api.parts import Service, TheService
from eigensweep.service.api.routes.experiments import ExperimentId, OwnExperimentId
from eigensweep.service.api.routes.overviews import TrialNumber
from eigensweep.service.record.ledger import RecordLedger
from eigensweep.service.record.views.queries import StoredTrial
from eigensweep.workers.driver.summary.export import export_study

EXPORTED_AT_ONCE = 1000
"""Trials that are read from the record at a time."""

router = APIRouter(tags=["trials"], route_class=WrittenRoute)


class TrialQuery(PageAsked):
    """Selects trials, and their order."""

    state: list[TrialState] = Field([], description="Only in these states")
    arm: str | None = Field(None, description="Only of this arm")
    sort: Literal["number", "-number", "value"] = Field(
        "number", description="`value`: the best first, trials without a rank last"
    )


@router.get("/experiments/{id}/trials", summary="List trials")
def list_trials(
    service: TheService, id: ExperimentId, query: Annotated[TrialQuery, Query()]
) -> Page[TrialSummary]:
    """Return the trials of an experiment, without configurations, reports and attempts."""
    by_value = query.sort == "value"
    found = service.record.listed_trials(
        id,
        states=query.state,
        arm=query.arm,
        sort=query.sort,
        limit=query.limit + 1,
        after=decode(query.sort, query.cursor, (int, float, int) if by_value else (int,)),
    )

    def find_key(last: StoredTrial) -> list[Part]:
        row = last.read().trial
        return [row.tier, row.rank, row.number] if by_value else [row.number]

    page, cursor = cut(found, query.limit, query.sort, find_key)
    return Page(items=[service.views.listed_trial(each) for each in page], next_cursor=cursor)


TrialsFormat = Literal["csv", "parquet", "journal"]
MEDIA_TYPES: Final[dict[TrialsFormat, str]] = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "journal": "application/jsonl",
}


@router.get(
    "/experiments/{id}/trials.{format}",
    summary="Export all trials",
    response_class=Response,
    responses={
        200: {"content": {media_type: {} for media_type in MEDIA_TYPES.values()}},
        **describe_errors(409),
    },
)
def export_trials(service: TheService, id: ExperimentId, format: TrialsFormat) -> Response:
    """Return all trials as a table, the best first: a column for each parameter and metric.

    The columns are those of `to_pandas()` in Python: the spread of each metric stands beside it. A
    `journal` is a study of Optuna's in a file, which `optuna-dashboard` opens.
    """
    if format == "journal":
        spec = ExperimentSpec.from_stored(service.record.row(id).spec)
        ledger = RecordLedger(service.record.url, id, generation=0, patience=0.0)
        content = export_study(id, spec, ledger.walk(), service.record.trial_times(id))
    elif format == "csv":
        content = make_frame(_read_rows(service, id)).to_csv(index=False).encode()
    else:
        content = write_parquet(make_frame(_read_rows(service, id)))
    disposition = f'attachment; filename="{id}.{format}"'
    return Response(content, 200, {"Content-Disposition": disposition}, MEDIA_TYPES[format])


def _read_rows(service: Service, id: str) -> Iterator[list[Row]]:
    """Yield all trials of an experiment in the order of the ranking, some of them at a time.

    The order is of one moment: by pages of the ranking, one that ends and moves up would be missed.
    """
    row = service.record.row(id)
    experiment = {"baseline": row.baseline, "metric": {"name": row.metric}}
    places, order = count(1), service.record.order_trials(id)
    for begin in range(0, len(order), EXPORTED_AT_ONCE):
        numbers = order[begin : begin + EXPORTED_AT_ONCE]
        page = service.record.listed_trials(id, numbers=numbers, limit=EXPORTED_AT_ONCE)
        found = {each.trial.number: each for each in (one.read() for one in page)}
        summaries = (
            service.views.summary(found[number]).model_dump(by_alias=True)
            for number in numbers
            if number in found  # else it was deleted meanwhile
        )
        yield [make_row(next(places), trial, experiment) for trial in summaries]


@router.get("/experiments/{id}/trials/{number}", summary="Look at a trial")
def get_trial(service: TheService, id: ExperimentId, number: TrialNumber) -> TrialNow:
    """Return a trial with its configuration, rung reports, attempts and result."""
    return service.views.trial(service.record.trial(id, number))


@router.post(
    "/experiments/{id}/trials/{number}/stop",
    status_code=202,
    summary="Stop a trial early",
    responses=describe_errors(409),
)
def stop_trial(service: TheService, id: OwnExperimentId, number: TrialNumber) -> TrialNow:
    """Stop one trial of a running experiment; its place goes to the next one of the search.

    Within seconds it is `pruned`, as one that a scheduler stops early, with the value of its best
    evaluation so far. A second call changes nothing. Answered 409 if the trial is over, if the
    experiment does not run, or if the trial has a result and trains further, with more seeds or a
    longer budget.
    """
    service.record.stop_trial(id, number)
    return get_trial(service, id, number)

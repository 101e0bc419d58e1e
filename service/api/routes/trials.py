"""List an experiment's trials and look at one. Runs in the service's process."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from eigensweep.service.api.errors import describe_errors
from eigensweep.service.api.paging import decode, encode
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.api.schemas import Page, TrialNow, TrialSummary
from eigensweep.service.api.written import WrittenRoute
from eigensweep.workers.shared.messages import OBJECTIVE
from eigensweep.workers.shared.states import TrialState

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]

EXPORTED_AT_ONCE = 1000
"""Trials that are read from the record at a time."""

EXPORTED = ("number", "arm", "state", "value", "best_step", "step", "steps", "seconds", "hash")
"""The first columns of an export."""

SPREAD = ("sd", "low", "high")
"""What an export says of each mean, as `NAME/sd`, `NAME/low` and `NAME/high`."""

router = APIRouter(tags=["trials"], route_class=WrittenRoute)


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
    found = service.record.listed_trials(
        id,
        states=query.state,
        arm=query.arm,
        sort=query.sort,
        limit=query.limit + 1,
        after=decode(query.sort, query.cursor, (int, float, int) if by_value else (int,)),
    )
    page, more = found[: query.limit], len(found) > query.limit
    cursor = None
    if more:
        last = page[-1].read().trial
        by = [last.tier, last.rank] if by_value else []
        cursor = encode(query.sort, [*by, last.number])
    return Page(items=[service.views.listed_trial(each) for each in page], next_cursor=cursor)


class Format(StrEnum):
    """A file format for tables."""

    csv = "csv"
    parquet = "parquet"


MEDIA_TYPES = {Format.csv: "text/csv", Format.parquet: "application/vnd.apache.parquet"}


@router.get(
    "/experiments/{id}/trials.{format}",
    summary="Export all trials",
    response_class=Response,
    responses={
        200: {"content": {media_type: {} for media_type in MEDIA_TYPES.values()}},
        **describe_errors(401, 404, 422, 503),
    },
)
def export_trials(service: TheService, id: ExperimentId, format: Format) -> Response:
    """Return all trials as a table: a row for each, a column for each parameter and metric."""
    frames, after = [], None
    while page := service.record.listed_trials(id, limit=EXPORTED_AT_ONCE, after=after):
        trials = [service.views.summary(each.read()) for each in page]
        frames.append(make_frame(trials))
        after = (trials[-1].number,)
    frame = join_frames(frames)
    if format is Format.csv:
        content = frame.to_csv(index=False).encode()
    else:
        content = frame.to_parquet(index=False)
    disposition = f'attachment; filename="{id}.{format}"'
    return Response(content, 200, {"Content-Disposition": disposition}, MEDIA_TYPES[format])


def make_frame(trials: Sequence[TrialSummary]) -> DataFrame:
    """Return a row for each trial: its parameters by path, `valid/` and `test/` metrics, spread."""
    import pandas as pd

    if not trials:
        return pd.DataFrame(columns=[*(n for n in TrialSummary.model_fields if n in EXPORTED), "n"])
    has_lineage = any(trial.lineage for trial in trials)
    return pd.DataFrame(
        {
            **trial.model_dump(include=set(EXPORTED)),
            **trial.params,
            **({"lineage": _describe_lineage(trial)} if has_lineage else {}),
            **{f"parameters/{kind}": count for kind, count in (trial.parameters or {}).items()},
            **{
                name if name.startswith("valid/") else f"valid/{name}": value
                for name, value in trial.metrics.items()
                if name != OBJECTIVE
            },
            **{f"test/{name}": value for name, value in trial.test.items()},
            "n": trial.statistics["value"].n if "value" in trial.statistics else None,
            **{
                f"{name}/{part}": getattr(found, part)
                for name, found in trial.statistics.items()
                for part in SPREAD
            },
            "mlflow": trial.links.mlflow,
        }
        for trial in trials
    )


def join_frames(frames: Sequence[DataFrame]) -> DataFrame:
    """Return the rows of several frames; a small part of the memory of their trials is enough."""
    import pandas as pd

    if not frames:
        return make_frame([])
    joined = pd.concat(frames, ignore_index=True)
    if "lineage" in joined:  # frames without it are of trials without one
        joined["lineage"] = joined["lineage"].fillna("")
    return joined


def _describe_lineage(trial: TrialSummary) -> str:
    """Return a trial's lineage as one text, such as `step 500 from trial 3: optimizer.lr=0.02`."""
    return "; ".join(
        f"step {taken.step} from trial {taken.source}: "
        + " ".join(f"{path}={value}" for path, value in taken.params.items())
        for taken in trial.lineage
    )


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

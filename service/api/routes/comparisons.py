"""Compare trials, arms and experiments. Runs in the service's process."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from eigensweep.service.api.comparison import Comparison, compare
from eigensweep.service.api.errors import describe_errors
from eigensweep.service.api.parts import TheService

router = APIRouter(tags=["trials"])

Subject = Annotated[
    str, StringConstraints(max_length=120, pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$")
]


class ComparisonQuery(BaseModel):
    """Names what is compared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: list[Subject] = Field(
        min_length=2,
        max_length=20,
        description="Two or more of: EXPERIMENT/NUMBER, a trial; EXPERIMENT/ARM, the arm's best "
        "trial on validation data; EXPERIMENT, its best trial",
    )
    metric: str | None = Field(
        None,
        max_length=120,
        description="The metric that is compared; default: what each experiment ranks by",
    )


@router.get(
    "/compare",
    summary="Compare trials, arms or experiments",
    responses=describe_errors(401, 404, 409, 422, 503),
)
def compare_subjects(
    request: Request, service: TheService, query: Annotated[ComparisonQuery, Query()]
) -> Comparison:
    """Compare every pair seed by seed: difference, interval, p-value, effect, and it in words.

    p-values are corrected after Holm over all pairs that could be tested, for validation and for
    test data each. What cannot be compared says why.
    """
    return compare(service.record, query.of, query.metric, request.app.version)

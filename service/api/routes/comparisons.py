"""Compare trials, arms and experiments. Runs in the service's process."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BeforeValidator, Field

from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.schemas import Asked
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.comparison import Comparison, Effort, compare, measure_effort, write_csv
from eigensweep.service.api.parts import TheService

router = APIRouter(tags=["trials"], route_class=DescribedRoute)

PATTERN = r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?$"
FEWEST, MOST = 2, 20
"""How many may be compared at once."""


def _check_subject(name: str) -> str:
    if len(name) > 120 or not re.fullmatch(PATTERN, name):
        raise ValueError("should be EXPERIMENT, EXPERIMENT/NUMBER or EXPERIMENT/ARM")
    return name


def check_count(names: list[str]) -> list[str]:
    """Return names as they are, if they are neither too few to be compared nor too many."""
    if isinstance(names, list) and not FEWEST <= len(names) <= MOST:
        few = f"{len(names)} names came"
        if len(names) == 1:
            few = "one alone cannot be compared; two arms are EXPERIMENT/ARM and EXPERIMENT/ARM"
        raise ValueError(f"should be {FEWEST} to {MOST} names; {few}")
    return names


Subject = Annotated[
    str,
    AfterValidator(_check_subject),
    Field(json_schema_extra={"maxLength": 120, "pattern": PATTERN}),
]


class EffortQuery(Asked):
    """Names what is compared."""

    of: Annotated[list[Subject], BeforeValidator(check_count)] = Field(
        json_schema_extra={"minItems": FEWEST, "maxItems": MOST},
        description="Two or more of: EXPERIMENT/NUMBER, a trial; EXPERIMENT/ARM, the arm's best "
        "trial on validation data; EXPERIMENT, its best trial",
    )
    metric: str | None = Field(
        None,
        max_length=120,
        description="The metric that is compared; default: what each experiment ranks by",
    )


class ComparisonQuery(EffortQuery):
    """The same, and what difference matters."""

    smallest: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Smallest difference of interest, in the metric's unit: sides that are shown "
        "to differ by no more are `equivalent`, and `plan` says what it takes to decide it",
    )


@router.get(
    "/compare", summary="Compare trials, arms or experiments", responses=describe_errors(404, 409)
)
def compare_subjects(
    request: Request, service: TheService, query: Annotated[ComparisonQuery, Query()]
) -> Comparison:
    """Compare every pair seed by seed: difference, interval, p-value, effect, and it in words.

    p-values are corrected after Holm over all pairs that could be tested, for validation and for
    test data each. What cannot be compared says why.
    """
    version = request.app.version
    return compare(service.record, query.of, query.metric, version, query.smallest)


@router.get(
    "/compare/effort", summary="Compare arms at equal tuning effort", responses=describe_errors(404)
)
def compare_effort(
    request: Request, service: TheService, query: Annotated[EffortQuery, Query()]
) -> Effort:
    """Return what the best of k trials comes to on test data, against k and against core hours.

    Arms that were searched with unequal numbers of trials are compared at equal ones. Diverged
    trials count with the worst value. A name is an arm or a whole experiment.
    """
    return measure_effort(service.record, query.of, query.metric, request.app.version)


@router.get(
    "/compare/effort.csv",
    summary="Export the curves of tuning effort",
    response_class=Response,
    responses={200: {"content": {"text/csv": {}}}, **describe_errors(404)},
)
def export_effort(
    request: Request, service: TheService, query: Annotated[EffortQuery, Query()]
) -> Response:
    """Return the same curves as a table, a row for each number of trials of each name."""
    found = measure_effort(service.record, query.of, query.metric, request.app.version)
    disposition = 'attachment; filename="effort.csv"'
    return Response(write_csv(found), 200, {"Content-Disposition": disposition}, "text/csv")

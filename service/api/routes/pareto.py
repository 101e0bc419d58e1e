"""The trials of an experiment that no other one beats in all of several objectives."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from eigensweep.common.direction import sign
from eigensweep.results.pareto import find_front, read_goals
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.checks.checks import check_against
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.schemas import AnswerModel, Metric
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.record.sql.tables import ResultJson

router = APIRouter(tags=["trials"], route_class=DescribedRoute)


class FrontTrial(AnswerModel):
    """A trial that no other one beats: better in something, and worse in nothing."""

    number: int
    arm: str
    params: dict[str, Scalar] = Field(description="What the search chose, by dotted path")
    values: dict[str, float] = Field(description="Its value of each objective, by name")


class ParetoTable(AnswerModel):
    """The trials of an experiment that no other one beats in all objectives."""

    objectives: list[Metric] = Field(description="The metric that ranks trials comes first")
    front: list[FrontTrial] = Field(description="The best by the first objective comes first")
    beaten: int = Field(
        description="Finished trials that another one beats: it is better in something, and worse "
        "in nothing"
    )
    unknown: int = Field(description="Finished trials without a value of some objective")


@router.get(
    "/experiments/{id}/pareto", summary="List the Pareto front", responses=describe_errors(409)
)
def get_pareto(
    service: TheService,
    id: ExperimentId,
    against: Annotated[
        list[str],
        Query(
            max_length=2,
            description="What the metric is weighed against: `parameters`, `seconds`, or another "
            "metric of the task; default: what the spec says, else `parameters`",
        ),
    ] = [],  # noqa: B006  (FastAPI copies it)
) -> ParetoTable:
    """Return the Pareto front: a small loss against few parameters, or against little time."""
    spec = ExperimentSpec.from_stored(service.record.row(id).spec)
    others = against or spec.objective.against or ["parameters"]
    for error in check_against(spec, others, "against"):
        raise error
    goals = spec.goals(others)
    names = [goal.name for goal in goals]

    def see(number: int, result: ResultJson | None) -> tuple[int, tuple[float | None, ...]]:
        means = {**(result or {}), "by_replicate": ()}  # goals are of the trial as a whole
        return number, tuple(read_goals(names, Result.from_dict(means)))

    ranked = service.record.ranked(id, see)
    known = [
        (number, [each for each in values if each is not None])
        for number, values in ranked
        if None not in values
    ]
    signs = [sign(goal.better) for goal in goals]
    points = [[s * v for s, v in zip(signs, values, strict=True)] for _, values in known]
    best = [known[place] for place in find_front(points)]
    settings = service.record.settings(id, [number for number, _ in best])
    front = [
        FrontTrial(
            number=number,
            arm=settings[number][0],
            params=settings[number][1],
            values=dict(zip(names, values, strict=True)),
        )
        for number, values in best
    ]
    return ParetoTable(
        objectives=goals,
        front=front,
        beaten=len(known) - len(front),
        unknown=len(ranked) - len(known),
    )

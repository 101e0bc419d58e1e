"""How much each searched parameter matters, arm by arm. Runs in the service's process."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from eigensweep.results.importance import EVALUATOR, Importance, measure_importance
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.answers.errors import describe_errors
from eigensweep.service.api.answers.schemas import AnswerModel, Metric
from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.record.views.overviews import list_arms, list_finished

router = APIRouter(tags=["overviews"], route_class=DescribedRoute)


class ArmImportance(AnswerModel):
    """The parameters of one arm, the most important first."""

    arm: str
    parameters: list[Importance]


class ImportanceNow(AnswerModel):
    """Importance within each arm."""

    metric: Metric
    evaluator: str = Field(description="What is measured, as Optuna calls it")
    arms: list[ArmImportance]


@router.get(
    "/experiments/{id}/importance",
    summary="How much each parameter matters",
    responses=describe_errors(409),
)
def get_importance(
    service: TheService,
    id: ExperimentId,
) -> ImportanceNow:
    """Return the share of each parameter, within each arm and never across arms.

    Only trials that trained to their end count. A parameter with a condition is judged among the
    trials that have it.
    """
    row, arms = list_arms(service.record, id)
    space = ExperimentSpec.from_stored(row.spec).space()
    finished = list_finished(service.record, id)
    return ImportanceNow(
        metric=Metric.made_of(row, name=row.metric),
        evaluator=EVALUATOR,
        arms=[
            ArmImportance(
                arm=arm.name,
                parameters=measure_importance(space.axes(arm.name), finished.get(arm.name, [])),
            )
            for arm in arms
        ],
    )

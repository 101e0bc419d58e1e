"""How much each searched parameter matters, arm by arm. Runs in the service's process."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId
from eigensweep.service.api.schemas import AnswerModel, Metric
from eigensweep.service.api.written import DescribedRoute
from eigensweep.service.record.overviews import list_arms, list_finished
from eigensweep.workers.driver.importance import EVALUATOR, Scored, measure_importance

router = APIRouter(tags=["overviews"], route_class=DescribedRoute)


class ParameterImportance(AnswerModel):
    """What one parameter contributes to the objective within its arm."""

    path: str
    share: float | None = Field(
        description="0 to 1; the shares of parameters that were judged together add up to 1"
    )
    trials: int = Field(description="Finished trials that have the parameter and were used")
    among: list[str] = Field(description="The parameters that were judged together")
    problem: str | None = Field(description="Why there is no share; null where there is one")


class ArmImportance(AnswerModel):
    """The parameters of one arm, the most important first."""

    arm: str
    parameters: list[ParameterImportance]


class ImportanceNow(AnswerModel):
    """Importance within each arm."""

    metric: Metric
    evaluator: str = Field(description="What is measured, as Optuna calls it")
    arms: list[ArmImportance]


@router.get("/experiments/{id}/importance", summary="How much each parameter matters")
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
    finished = {
        arm: [Scored(params, value) for params, value in found]
        for arm, found in list_finished(service.record, id).items()
    }
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

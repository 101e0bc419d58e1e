"""Post, list, look at and cancel reproductions, fetch their reports, and list the suites.

Runs in the service's process.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Annotated, Final, Literal, Self

from fastapi import APIRouter, Body, Path, Query, Response
from fastapi.responses import FileResponse
from pydantic import Field, model_validator

from eigensweep.protocol.messages import SpecJson
from eigensweep.reports import messages
from eigensweep.reports.report import ReportContent
from eigensweep.search_spaces.errors import SpecError
from eigensweep.search_spaces.sections import ResourcesConfig
from eigensweep.search_spaces.shipped.reproductions import (
    BUDGETS,
    Budget,
    count_first,
    estimate_core_seconds,
    find_missing_corpora,
    load_suite,
    make_specs,
    plan_seeds,
    suite_names,
)
from eigensweep.service.api.answers.errors import describe_errors, describe_repeat
from eigensweep.service.api.answers.schemas import AnswerModel, Asked, Items
from eigensweep.service.api.answers.written import DescribedRoute, ServiceRoute
from eigensweep.service.api.callers.callers import Submitter
from eigensweep.service.api.parts import Service, TheService, TheSettings
from eigensweep.service.api.routes.catalogue import Name
from eigensweep.service.record.errors import ExperimentNotFoundError
from eigensweep.service.record.requests.reproductions import ReproductionRecord, ReproductionState
from eigensweep.service.settings import Settings

router = APIRouter(tags=["reproductions"], route_class=ServiceRoute)
suites = APIRouter(tags=["reproductions"], route_class=DescribedRoute)
"""What is described from the code alone."""

ReproductionId = Annotated[
    str, Path(min_length=1, max_length=32, description="As the post gave it")
]


ReportFormat = Literal["json", "md", "html", "svg", "results"]
FORMS: Final[dict[ReportFormat, tuple[str, str]]] = {
    "json": (messages.JSON, "application/json"),
    "md": (messages.MARKDOWN, "text/markdown"),
    "html": (messages.HTML, "text/html"),
    "svg": (messages.FIGURE, "image/svg+xml"),
    "results": (messages.RESULTS, "application/json"),
}
"""The name of its file, and its media type."""
SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}
"""A report opens nothing and runs nothing."""


class ReproductionRequest(Asked):
    """A table or figure of a paper, and how much of it is run."""

    name: str = Field(max_length=120, description="One of those at /v1/reproduction-suites")
    budget: Budget = Field(
        "short",
        description="`short`: at most about 20 minutes on two processors, with what that cuts; "
        "`full`: the paper's own size",
    )
    until_decided: bool = Field(
        False,
        description="Add seeds until the primary claim is decided, by a test that holds at every "
        "look together; those that are trained are taken over",
    )
    core_hours: float | None = Field(
        None,
        gt=0,
        description="With `until_decided`: time that added seeds may take, by the cores of each; "
        "null: `most` is the only limit",
    )
    most: int = Field(
        messages.MOST_SEEDS,
        ge=3,
        le=1000,
        description="With `until_decided`: largest number of seeds",
    )
    resources: ResourcesConfig | None = Field(
        None,
        description="What one trial occupies, such as a GPU with lanes for the seeds of an arm; "
        "null: what the suite says, which is one CPU core",
    )

    @model_validator(mode="after")
    def _limits_what_is_added(self) -> Self:
        given = self.model_fields_set & {"core_hours", "most"}
        if given and not self.until_decided:
            raise ValueError(f"'{min(given)}' limits added seeds: give 'until_decided', too")
        return self

    @property
    def until(self) -> messages.Until | None:
        return messages.Until(self.core_hours, self.most) if self.until_decided else None


class ReproductionExperiment(AnswerModel):
    """An experiment of a reproduction."""

    label: str
    id: str | None
    state: str
    fraction: float | None
    problem: str | None = Field(description="Why it cannot run on this service")
    link: str | None


class ReproductionAnalysis(AnswerModel):
    """An analysis of a reproduction."""

    label: str
    repeat: int
    id: str | None
    problem: str | None = Field(description="Why it cannot be made")
    link: str | None


class AddedSeeds(AnswerModel):
    """How many seeds were added until the primary claim is decided."""

    core_hours: float | None = Field(description="The most that added seeds may take")
    most: int = Field(description="The largest number of seeds")
    seeds: list[int] = Field(description="Seeds at each look, the present one last")


class ReproductionLinks(AnswerModel):
    """Paths of a reproduction."""

    self: str
    page: str = Field(description="Its page for browsers")
    cancel: str
    report: dict[str, str] = Field(description="By format; empty until it is finished")


class ReproductionNow(AnswerModel):
    """A reproduction: its experiments, its state, its verdict."""

    id: str = Field(description="The digest of the suite: the same request has the same id")
    owner: str = Field(description="The user who opened it")
    name: str
    budget: Budget
    title: str
    state: ReproductionState
    fraction: float = Field(ge=0, le=1, description="Share of its experiments' work that is done")
    created_at: datetime
    finished_at: datetime | None
    experiments: list[ReproductionExperiment]
    analyses: list[ReproductionAnalysis]
    verdict: str | None = Field(
        description="On the whole table or figure: `holds`, `does not hold`, "
        "`equivalent`, `not distinguishable` or `not comparable`; null before the report"
    )
    words: str | None = Field(description="How many claims have which verdict")
    until_decided: AddedSeeds | None = Field(description="Null where the number of seeds is fixed")
    resources: ResourcesConfig | None = Field(
        description="What one trial occupies; null: what the suite says"
    )
    error: str | None = Field(description="Why its report could not be made")
    mlflow_problem: str | None = Field(description="Why MLflow does not have the report")
    links: ReproductionLinks


class ReproductionQuery(Asked):
    """Selects reproductions."""

    name: str | None = Field(None, max_length=120, description="Only of this suite")
    budget: Budget | None = Field(None, description="Only of this budget")
    state: list[ReproductionState] = Field([], description="Only in these states")


class SuiteListing(AnswerModel):
    """A suite in a list."""

    name: str
    title: str
    paper: str
    place: str
    says: str = Field(description="What the paper reads from it")
    cut: str | None = Field(description="What the short budget cuts")
    needs: str | None = Field(description="What a machine must have, such as a licensed corpus")
    full_is_long: str | None = Field(
        description="Why the full budget is left out unless it is asked for by name"
    )
    core_minutes: dict[Budget, float] = Field(
        description="A rough guess of the time of its trainings on one processor, by budget"
    )
    same_as: str | None = Field(description="The suite whose experiments these are, too")
    missing: dict[str, str] = Field(
        description="Tasks whose corpus this service lacks, each with where it was looked for"
    )


class PlannedSeeds(AnswerModel):
    """What it takes to decide the primary claim, if the difference is of some size."""

    difference: str = Field(description="Its size, in words")
    seeds: int | None = Field(description="About; null beyond 1,000")
    core_hours: float | None = Field(
        description="Of all these seeds on one core, as rough a guess as `core_minutes`"
    )


class SuiteEntry(SuiteListing):
    """A suite in full."""

    plan: dict[Budget, list[PlannedSeeds]] = Field(
        description="What it takes to decide the primary claim with `until_decided`; empty where "
        "seeds decide nothing"
    )

    suite: dict[str, object] = Field(
        description="Its experiments, analyses and claims, as its file has them"
    )
    specs: dict[Budget, dict[str, SpecJson]] = Field(
        description="The ExperimentSpecs that a budget posts, by label"
    )


@router.post(
    "/reproductions",
    status_code=201,
    summary="Post a reproduction",
    responses=describe_errors(404, 409) | describe_repeat(ReproductionNow),
)
def post_reproduction(
    service: TheService,
    caller: Submitter,
    request: Annotated[ReproductionRequest, Body()],
    response: Response,
) -> ReproductionNow:
    """Queue the experiments of a table or figure; their results become a report.

    The same request gives the same reproduction, and what has finished is not run again. It is
    opened again where it failed, was cancelled, or an experiment of it was.
    """
    service.record.require_to_lead()
    found, is_new = service.reproductions.add(
        request.name, request.budget, caller.user, request.until, request.resources
    )
    service.dispatcher.wake()
    answer = make_answer(service, found)
    response.headers["Location"] = answer.links.self
    if not is_new:
        response.status_code = 200
    return answer


@router.get("/reproductions", summary="List reproductions")
def list_reproductions(
    service: TheService, query: Annotated[ReproductionQuery, Query()]
) -> Items[ReproductionNow]:
    """Return the reproductions that were posted, in the order of their papers."""
    found = [
        each
        for each in service.reproductions.list(query.state)
        if query.name in (None, each.name) and query.budget in (None, each.budget)
    ]
    return Items(items=[make_answer(service, each) for each in found])


@router.get("/reproductions/{id}", summary="Look at a reproduction")
def get_reproduction(service: TheService, id: ReproductionId) -> ReproductionNow:
    """Return a reproduction with the state of its experiments and, at the end, its verdict."""
    return make_answer(service, service.reproductions.get(id))


@router.post(
    "/reproductions/{id}/cancel",
    status_code=202,
    summary="Cancel a reproduction",
    responses=describe_errors(409),
)
def cancel_reproduction(
    service: TheService, caller: Submitter, id: ReproductionId
) -> ReproductionNow:
    """Cancel a reproduction and its experiments, also where another reproduction shares them.

    With scope `submit` a user cancels what is the user's own; experiments of others go on.
    Post it again to go on: what has finished stays.
    """
    service.record.require_to_lead()
    caller.require_owner(service.reproductions.get(id).owner, f"reproduction {id}")
    found = service.reproductions.cancel(id, caller.owns)
    service.dispatcher.wake()
    return make_answer(service, found)


@router.get(
    "/reproductions/{id}/report.{format}",
    summary="Fetch the report of a reproduction",
    response_class=FileResponse,
    responses={
        200: {
            "description": "The report as JSON, Markdown or one HTML page, its picture, or the "
            "results that it is made of",
            "content": {kind: {} for _, kind in FORMS.values()},
        }
    },
)
def get_report(service: TheService, id: ReproductionId, format: ReportFormat) -> FileResponse:
    """Return the report of a finished reproduction."""
    name, kind = FORMS[format]
    return FileResponse(service.reproductions.file(id, name), media_type=kind, headers=SAFE)


def read_report(service: Service, id: str) -> ReportContent:
    """Return the report of a finished reproduction."""
    path = service.reproductions.file(id, messages.JSON)
    return ReportContent.model_validate_json(path.read_bytes())


@suites.get("/reproduction-suites", summary="List suites")
def list_suites(settings: TheSettings) -> Items[SuiteListing]:
    """Return the tables and figures of the papers that can be measured again."""
    return Items(items=[_list_suite(name, settings) for name in suite_names()])


@suites.get("/reproduction-suites/{name:path}", summary="Look at a suite")
def get_suite(settings: TheSettings, name: Name) -> SuiteEntry:
    """Return what a suite runs and what it compares."""
    suite = load_suite(name)
    return SuiteEntry(
        **_list_suite(name, settings).model_dump(),
        suite=suite.model_dump(mode="json", exclude_unset=True),
        plan={
            budget: [PlannedSeeds(**vars(each)) for each in plan_seeds(name, budget)]
            for budget in BUDGETS
        },
        specs={
            budget: {
                label: spec.model_dump(mode="json", exclude_unset=True)
                for label, spec in make_specs(name, budget).items()
            }
            for budget in BUDGETS
        },
    )


def _list_suite(name: str, settings: Settings) -> SuiteListing:
    suite = load_suite(name)
    return SuiteListing(
        name=name,
        **suite.model_dump(
            include={"title", "paper", "place", "says", "cut", "needs", "full_is_long", "same_as"}
        ),
        core_minutes={budget: round(_minutes(name, budget), 1) for budget in BUDGETS},
        missing=find_missing_corpora(name, settings.corpora),
    )


@cache
def _minutes(name: str, budget: Budget) -> float:
    return sum(map(estimate_core_seconds, make_specs(name, budget).values())) / 60


def make_answer(service: Service, found: ReproductionRecord) -> ReproductionNow:
    """Return a reproduction with the state of its experiments."""
    here = f"/v1/reproductions/{found.id}"
    experiments = [
        _describe_experiment(service, label, posted.id, posted.problem)
        for label, posted in found.experiments.items()
    ]
    fractions = [each.fraction or 0.0 for each in experiments if each.id is not None]
    done = sum(fractions) / len(fractions) if fractions else 0.0
    return ReproductionNow.made_of(
        found,
        title=load_suite(found.name).title if found.name in suite_names() else found.name,
        fraction=1.0 if found.state == "finished" else done,
        experiments=experiments,
        analyses=[
            ReproductionAnalysis.made_of(each, link=each.id and f"/v1/analyses/{each.id}")
            for each in found.analyses or ()
        ],
        until_decided=_describe_until(found),
        links=ReproductionLinks(
            self=here,
            page=f"/reproductions/{found.id}",
            cancel=f"{here}/cancel",
            report={f: f"{here}/report.{f}" for f in FORMS} if found.state == "finished" else {},
        ),
    )


def _describe_until(found: ReproductionRecord) -> AddedSeeds | None:
    if found.until is None:
        return None
    first = 0
    with suppress(SpecError):  # it was removed since
        first = count_first(found.name, found.budget) or 0
    seeds = [first + added for added in found.until.looks]
    return AddedSeeds(core_hours=found.until.core_hours, most=found.until.most, seeds=seeds)


def _describe_experiment(
    service: Service, label: str, id: str | None, problem: str | None
) -> ReproductionExperiment:
    now = None
    if id is not None:
        try:
            now = service.views.experiment(service.record.experiment(id))
        except ExperimentNotFoundError:
            problem = "deleted"
    if now is None:
        return ReproductionExperiment(
            label=label, id=None, state="unavailable", fraction=None, problem=problem, link=None
        )
    fraction, link = now.progress.fraction, now.links.self
    return ReproductionExperiment.made_of(
        now, label=label, fraction=fraction, problem=now.error, link=link
    )

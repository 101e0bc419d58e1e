"""Answers browsers: each page is made of what the API answers, by the same functions.

Runs in the service's process. What stands on a page can be had under /v1, and a page changes
nothing: its scripts call the API.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Query, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, Field, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from eigensweep.common.direction import sign
from eigensweep.protocol import states
from eigensweep.reports.markdown import caption_of, cost_words, make_tables, remarks_of
from eigensweep.results.ranking import OBJECTIVE
from eigensweep.search_spaces.errors import UnknownSuiteError, UnreadableSpecError
from eigensweep.search_spaces.shipped.presets import load_preset
from eigensweep.search_spaces.shipped.reproductions import BUDGETS
from eigensweep.search_spaces.spec_text import write_text
from eigensweep.service.api.answers.errors import STATUS, answer_error
from eigensweep.service.api.answers.schemas import Asked, Metric, TrialNow, TrialSummary
from eigensweep.service.api.callers.callers import Caller, Reader, Submitter
from eigensweep.service.api.callers.identity import PROXY
from eigensweep.service.api.comparison import find_baseline_on_test
from eigensweep.service.api.middleware.page_headers import PAGE_HEADERS, asks_for_page
from eigensweep.service.api.pages.fields import write_fields
from eigensweep.service.api.pages.formats import FILTERS, show_number
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes import (
    analyses,
    catalogue,
    cluster,
    comparisons,
    experiments,
    overviews,
    reproductions,
    storage,
    trials,
)
from eigensweep.service.api.routes.comparisons import ComparisonQuery
from eigensweep.service.api.routes.experiments import ExperimentId, ExperimentQuery
from eigensweep.service.api.routes.overviews import TrialNumber
from eigensweep.service.api.routes.reproductions import ReproductionId, SuiteListing
from eigensweep.service.api.routes.trials import TrialQuery
from eigensweep.service.record.errors import NotFoundError
from eigensweep.service.record.requests.reproductions import OPEN, ReproductionRecord
from eigensweep.service.record.sql.tables import ExperimentRow
from eigensweep.service.record.views.overviews import ArmRecord, list_arms, list_lineages

Query_ = TypeVar("Query_", bound=BaseModel)

PLACE: Final = Path(__file__).parent
A_YEAR: Final = "public, max-age=31536000, immutable"
UNRANKED_ENDS: Final[tuple[states.TrialState, ...]] = ("failed", "stalled", "diverged", "invalid")
UNFINISHED: Final[tuple[states.TrialState, ...]] = ("waiting", "running", "pruned", "cancelled")
SHOWN: Final = 20
"""Trials on the page of an experiment, and failures of each kind."""

SHOWN_ERRORS: Final[tuple[type[Exception], ...]] = (
    RequestValidationError,
    SQLAlchemyError,
    *STATUS,
)

TEMPLATES: Final = Environment(
    loader=PackageLoader(__package__, "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= FILTERS
TEMPLATES.globals |= {
    "ACTIONS": states.ACTIONS,
    "ENDED": states.ENDED,
    "OPEN_ANALYSES": states.OPEN_ANALYSES,
    "PHASES": states.PHASES,
}


class PageRoute(APIRoute):
    """A route whose errors are pages, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def answer_with_page(request: Request) -> Response:
            try:
                return await answer(request)
            except SHOWN_ERRORS as error:
                return _show_error(request, error)

        return answer_with_page


def answer_http_error(request: Request, error: Exception) -> Response:
    """Return the answer to a path that leads nowhere: to a browser a page, but below /v1."""
    if asks_for_page(request.scope) and not request.scope["path"].startswith("/v1/"):
        return _show_error(request, error)
    return answer_error(request, error)


def _show_error(request: Request, error: Exception) -> Response:
    told = answer_error(request, error)
    found = json.loads(bytes(told.body))
    return render(request.state.caller, "error.html", told.status_code, problem=found)


router = APIRouter(route_class=PageRoute, include_in_schema=False)


def add_pages(into: APIRouter, guard: Sequence[params.Depends]) -> None:
    """Add all pages, and the files that they load, to the routes of an application."""
    into.include_router(router, dependencies=guard)
    into.mount("/static", _Static(directory=PLACE / "static"))


def render(caller: Caller | None, template: str, status: int = 200, **content: Any) -> Response:
    """Return a page for who asks; who came with a token has a button to sign out.

    In templates the caller is the visitor: a macro has a `caller` of its own.
    """
    content |= {
        "visitor": caller,
        "has_session": caller is not None and caller.token not in (None, PROXY),
        "here": "/" if template == "experiments.html" else f"/{template.removesuffix('.html')}",
    }
    return HTMLResponse(TEMPLATES.get_template(template).render(content), status, PAGE_HEADERS)


def validate(model: type[Query_], **fields: Any) -> Query_:
    """Return a query of the API; what it refuses is an error of the page's address."""
    try:
        return model(**fields)
    except ValidationError as error:
        raise RequestValidationError(
            [{**each, "loc": ("query", *each["loc"])} for each in error.errors()]
        ) from error


def ask(model: type[Query_], form: BaseModel, **more: Any) -> Query_:
    """Return a query of the API with what is filled in of a page's form, which names one state."""
    several = ("state", "tag")
    filled = {name: [value] if name in several else value for name, value in form if value}
    return validate(model, **filled, **more)


class ListQuery(Asked):
    """Selects experiments on the first page; what is empty selects all."""

    name: str = Field("", max_length=120)
    state: Literal[""] | states.ExperimentState = ""
    project: str = Field("", max_length=120)
    owner: str = Field("", max_length=64)
    tag: str = Field("", max_length=300)
    archived: bool = False
    cursor: str | None = Field(None, max_length=1000)


@router.get("/")
def show_experiments(
    service: TheService, caller: Reader, query: Annotated[ListQuery, Query()]
) -> Response:
    """Return the list of experiments."""
    page = experiments.list_experiments(service, ask(ExperimentQuery, query, limit=25))
    return render(
        caller,
        "experiments.html",
        page=page,
        query=query,
        states=states.EXPERIMENT_STATES,
        is_live=any(each.state not in states.ENDED for each in page.items),
        waits=service.record.waits,
        mlflow=service.mlflow and service.mlflow.make_local(service.mlflow.pages),
    )


@router.get("/storage")
def show_storage(service: TheService, caller: Reader) -> Response:
    """Return the page of what takes disk space."""
    return render(caller, "storage.html", use=storage.show_storage(service, caller))


@router.get("/experiments/{id}")
def show_experiment(service: TheService, caller: Reader, id: ExperimentId) -> Response:
    """Return the page of one experiment."""
    experiment = experiments.get_experiment(service, id)
    failures = {
        state: trials.list_trials(
            service, id, TrialQuery(state=[state], sort="-number", limit=SHOWN)
        ).items
        for state in UNRANKED_ENDS
        if getattr(experiment.progress, state)
    }
    arms = list_arms(service.record, id)
    summed = overviews.make_arms(*arms)
    best = trials.list_trials(service, id, TrialQuery(sort="value", limit=SHOWN)).items
    return render(
        caller,
        "experiment.html",
        experiment=experiment,
        mlflow=service.mlflow and service.mlflow.make_local(experiment.links.mlflow),
        ahead=_find_ahead(experiment.metric, best),
        arms=summed.items,
        test_baseline=find_baseline_on_test(
            experiment.spec["task"], experiment.metric.name, experiment.baseline
        ),
        untried=summed.untried,
        published=_find_published(*arms),
        failures=failures,
        trials=best,
        lineages=list_lineages(service.record, id),
        spec_text=write_text(experiment.spec, 88),
        is_live=experiment.state not in states.ENDED,
    )


def _find_published(
    experiment: ExperimentRow, arms: Sequence[ArmRecord]
) -> list[overviews.PublishedNow]:
    try:
        return overviews.make_published(experiment, arms).items
    except UnreadableSpecError:  # what else there is of it can still be read
        return []


class TrialsPageQuery(Asked):
    """Selects trials; what is empty selects all."""

    state: Literal[""] | states.TrialState = ""
    arm: str = Field("", max_length=200)
    sort: Literal["value", "number", "-number"] = "value"
    cursor: str | None = Field(None, max_length=1000)


@router.get("/experiments/{id}/trials")
def show_trials(
    service: TheService,
    caller: Reader,
    id: ExperimentId,
    query: Annotated[TrialsPageQuery, Query()],
) -> Response:
    """Return the list of an experiment's trials."""
    experiment = experiments.get_experiment(service, id)
    return render(
        caller,
        "trials.html",
        experiment=experiment,
        page=trials.list_trials(service, id, ask(TrialQuery, query, limit=100)),
        arms=[arm.name for arm in list_arms(service.record, id)[1]],
        query=query,
        states=states.TRIAL_STATES,
        is_live=experiment.state not in states.ENDED,
    )


@router.get("/experiments/{id}/trials/{number}")
def show_trial(
    service: TheService, caller: Reader, id: ExperimentId, number: TrialNumber
) -> Response:
    """Return the page of one trial."""
    trial = trials.get_trial(service, id, number)
    asked = analyses.list_analyses(service, analyses.AnalysisQuery(experiment=id, trial=number))
    trains = trial.state in states.OPEN_TRIALS
    return render(
        caller,
        "trial.html",
        experiment=experiments.get_experiment(service, id),
        trial=trial,
        mlflow=service.mlflow and service.mlflow.make_local(trial.links.mlflow),
        checkpoints=overviews.get_checkpoints(service, id, number).items,
        analyses=asked.items,
        log=_make_log(trial),
        kinds=[each for each in analyses.list_kinds().items if each.of == "trial"],
        trains=trains,
        is_live=trains or any(each.state in states.OPEN_ANALYSES for each in asked.items),
    )


@router.get("/cluster")
def show_cluster(service: TheService, caller: Reader) -> Response:
    """Return the nodes, who uses them, and why something waits."""
    found = cluster.get_cluster(service)
    most = cluster.MOST_WAITING
    return render(caller, "cluster.html", found=found, most_waiting=most, is_live=True)


@router.get("/reproductions")
def show_reproductions(service: TheService, caller: Reader) -> Response:
    """Return the list of the papers' tables and figures, with what was run of each."""
    newest: dict[tuple[str, str], Any] = {}
    again: dict[tuple[str, str], dict[str, object]] = {}
    for found in service.reproductions.list():  # the newest of a suite and budget comes last
        is_open = found.state in OPEN
        again[found.name, found.budget] = _ask_again(found)
        newest[found.name, found.budget] = (
            reproductions.make_answer(service, found) if is_open else found
        )
    papers: dict[str, list[SuiteListing]] = {}
    for suite in reproductions.list_suites(service.settings).items:
        papers.setdefault(suite.paper, []).append(suite)
    return render(
        caller,
        "reproductions.html",
        papers=papers,
        newest=newest,
        again=again,
        budgets=BUDGETS,
        is_live=any(each.state in OPEN for each in newest.values()),
    )


@router.get("/reproductions/{id}")
def show_reproduction(service: TheService, caller: Reader, id: ReproductionId) -> Response:
    """Return the page of one reproduction: its progress, and at the end its report."""
    found = reproductions.get_reproduction(service, id)
    suite = None
    with suppress(UnknownSuiteError):  # it was removed since
        suite = reproductions.get_suite(service.settings, found.name)
    report = None
    with suppress(NotFoundError):  # there is none yet, or its file was removed
        report = reproductions.read_report(service, id)
    return render(
        caller,
        "reproduction.html",
        found=found,
        suite=suite,
        report=report,
        again=_ask_again(service.reproductions.get(id)),
        remarks=[] if report is None else remarks_of(report),
        tables=[] if report is None else make_tables(report, "\n"),
        caption="" if report is None else caption_of(report),
        what_it_took="" if report is None else cost_words(report),
        is_live=found.state in OPEN,
    )


def _ask_again(found: ReproductionRecord) -> dict[str, object]:
    """Return the body of the request that opened a reproduction."""
    body: dict[str, object] = {"name": found.name, "budget": found.budget}
    if found.until is not None:
        limits = {"core_hours": found.until.core_hours, "most": found.until.most}
        body |= {"until_decided": True, **limits}
    return body if found.resources is None else {**body, "resources": found.resources}


class FormQuery(Asked):
    """What the form starts from: a preset, an experiment's spec, or the quickstart."""

    preset: str = Field("", max_length=200)
    experiment: str | None = Field(None, max_length=32)
    extend: bool = False
    """Whether the form gives the experiment more to do, instead of posting another one."""


@router.get("/fields")
def show_fields(caller: Reader) -> Response:
    """Return what each field of a spec takes and means, and which models and tasks there are."""
    return render(caller, "fields.html", fields=write_fields())


class ComparePageQuery(Asked):
    """What is compared; empty fields of the form are left out."""

    of: list[str] = Field([], max_length=1000)  # empty ones among them; the API counts names
    metric: str = Field("", max_length=120)
    smallest: str = Field("", max_length=40)


@router.get("/compare")
def show_comparison(
    request: Request,
    service: TheService,
    caller: Reader,
    query: Annotated[ComparePageQuery, Query()],
) -> Response:
    """Return a comparison, or the form that asks for one."""
    names = [name.strip() for name in query.of if name.strip()]
    found = effort = None
    if len(names) > 1:
        asked = validate(
            ComparisonQuery, of=names, metric=query.metric or None, smallest=query.smallest or None
        )
        found = comparisons.compare_subjects(request, service, asked)
        with suppress(UnreadableSpecError):  # what its trials came to can still be compared
            effort = comparisons.compare_effort(request, service, asked)
    return render(
        caller,
        "compare.html",
        names=names,
        metric=query.metric,
        smallest=query.smallest,
        found=found,
        effort=effort,
    )


@router.get("/docs")
def show_api(caller: Reader) -> Response:
    """Return the page of the API, whose script shows what /openapi.json says."""
    return render(caller, "docs.html")


@router.get("/new")
def show_form(
    service: TheService, caller: Submitter, query: Annotated[FormQuery, Query()]
) -> Response:
    """Return the form that posts an experiment."""
    preset = query.preset or ("" if query.experiment else "quickstart")
    if preset:
        spec = load_preset(preset).model_dump(mode="json", exclude_unset=True)
    else:
        spec = experiments.get_experiment(service, query.experiment or "").spec
    return render(
        caller,
        "new.html",
        text=write_text(spec, 88),
        presets=catalogue.list_presets().items,
        query=query,
        preset=preset,
        is_extension=query.extend and not preset,
    )


def _find_ahead(metric: Metric, shown: Sequence[TrialSummary]) -> tuple[TrialSummary, float] | None:
    """Return which of these trials, that still train or were cut off, is ahead, and its value.

    That is the best evaluation of one that was cut off, the newest report of others.
    """
    known = (
        (each, each.metrics.get(OBJECTIVE) if each.value is None else each.value)
        for each in shown
        if each.state in UNFINISHED
    )
    found = [(each, value) for each, value in known if value is not None]
    return min(found, key=lambda one: sign(metric.better) * one[1], default=None)


def _make_log(trial: TrialNow) -> list[tuple[datetime, str]]:
    """Return what happened to a trial, in order: its attempts, its reports, its end."""
    lines = []
    for each in trial.attempts:
        where = ", ".join(
            words
            for words in (
                each.node,
                each.pid and f"process {each.pid}",
                each.device,
                each.lanes and f"an engine of {each.lanes} lanes",
            )
            if words
        )
        began = f"attempt {each.attempt} began" + (f" on {where}" if where else "")
        lines.append((each.started_at, began))
        if each.ended_at is not None and each.reason:
            lines.append((each.ended_at, f"attempt {each.attempt} ended: {each.reason}"))
    for report in trial.reports:
        scores = ", ".join(f"{name} {show_number(v)}" for name, v in report.metrics.items())
        lines.append((report.at, f"step {show_number(report.step)}: {scores}"))
    if trial.ended_at is not None:
        lines.append((trial.ended_at, trial.state))
    return sorted(lines, key=lambda line: line[0])


class _Static(StaticFiles):
    """The stylesheet and the scripts.

    Those of `vendor` are others', each with its version in its name: a browser keeps it for a year
    and asks no more.
    """

    def file_response(self, full_path: Any, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(full_path, *args, **kwargs)
        is_fixed = Path(full_path).parent.name == "vendor"
        response.headers["Cache-Control"] = A_YEAR if is_fixed else "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

"""Puts the application together: routes, errors and middleware. Runs in the service's process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from fastapi import APIRouter, FastAPI, params
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from eigensweep.common import traces
from eigensweep.service.api.answers.disk_use import measure_now_and_then
from eigensweep.service.api.answers.errors import Responses, answer_errors, describe_errors
from eigensweep.service.api.answers.schemas import Views
from eigensweep.service.api.answers.shared_answers import SingleFlight
from eigensweep.service.api.answers.tailer import Tailer
from eigensweep.service.api.callers.callers import READ, AsOperator, require_scopes
from eigensweep.service.api.callers.identity import Identity
from eigensweep.service.api.callers.sessions import Sessions
from eigensweep.service.api.middleware.access import PUBLIC, Access
from eigensweep.service.api.middleware.latencies import Latencies, RequestSpans
from eigensweep.service.api.middleware.limits import BodyLimits
from eigensweep.service.api.middleware.page_headers import SafeHeaders
from eigensweep.service.api.middleware.rates import Rates
from eigensweep.service.api.mlflow import mlflow_proxy
from eigensweep.service.api.mlflow.mlflow_proxy import MlflowProxy
from eigensweep.service.api.pages.routes import add_pages, answer_http_error
from eigensweep.service.api.parts import Queue, Service
from eigensweep.service.api.routes import (
    accounts,
    analyses,
    catalogue,
    cluster,
    comparisons,
    experiments,
    health,
    importances,
    metrics,
    overviews,
    pareto,
    races,
    reproductions,
    storage,
    streams,
    trials,
)
from eigensweep.service.api.transfer import Compression, HeadAsGet, Validators
from eigensweep.service.record.jobs import Jobs
from eigensweep.service.record.record import Record
from eigensweep.service.record.requests.analyses import Analyses
from eigensweep.service.record.requests.reproductions import Reproductions
from eigensweep.service.record.users.accounts import Accounts
from eigensweep.service.record.users.audit import Audit
from eigensweep.service.settings import Mlflow, Settings, read_version
from eigensweep.service.store_probe import StoreProbe

REFUSALS: Final = describe_errors(401, 403, 429, 503)
"""What every route that needs a caller can answer: `Access` does, before the route is asked."""

EXAMPLES: Final = Path(__file__).with_name("examples.json")
"""What a service said to experiments that were played; `python docs/generate.py` writes it."""

DESCRIPTION: Final = """
Post an experiment, follow it, and read its ranked trials. Each trial is a run in MLflow.

* `POST /v1/experiments` takes an `ExperimentSpec`; `/v1/presets` has examples of it.
* `GET /v1/experiments/{id}/events` streams events until the experiment is over.
* `GET /v1/compare` compares trials, arms or experiments seed by seed;
  `/v1/compare/effort` compares arms at equal tuning effort.
* `POST /v1/analyses` examines a trained trial; `/v1/analysis-kinds` lists the kinds.
* `POST /v1/reproductions` measures a table or figure of a paper again and reports on it.
* Every error is an `application/problem+json` with the field, what was expected, and what exists.
"""


def create_app(
    settings: Settings,
    record: Record,
    dispatcher: Queue,
    mlflow: Mlflow | None = None,
) -> FastAPI:
    """Return the application. Set `app.state.service.tailer.closing` to end open event streams."""
    app = FastAPI(
        docs_url=None,  # we have a page of our own
        redoc_url=None,
        routes=list(_make_routes()),
        title="Eigensweep",
        version=read_version(),
        summary="Hyperparameter search for long-memory recurrent networks",
        description=DESCRIPTION,
        openapi_tags=[
            {"name": "experiments", "description": "Post, follow, cancel."},
            {"name": "trials", "description": "Each trial is one configuration."},
            {"name": "overviews", "description": "Arms, curves and points: what the pages show."},
            {
                "name": "analyses",
                "description": "Gradients, spectra, memory: numbers and pictures.",
            },
            {
                "name": "reproductions",
                "description": "Tables and figures of the papers, measured again.",
            },
            {"name": "catalogue", "description": "Models, tasks and presets that a spec can name."},
            {"name": "storage", "description": "What takes disk space, and what may go."},
            {"name": "cluster", "description": "Nodes, who uses them, and why something waits."},
            {"name": "access", "description": "Users, tokens, quotas, and the audit log."},
            {"name": "health", "description": "For monitoring."},
        ],
    )
    describe = app.openapi
    app.openapi = lambda: _add_examples(describe())  # type: ignore[method-assign]
    jobs, people = Jobs(record.url, record.fence), Accounts(record.url)
    keeper = Sessions(settings.home / "sessions.json")
    app.state.settings = settings
    app.state.service = Service(
        settings=settings,
        record=record,
        dispatcher=dispatcher,
        tailer=Tailer(record),
        views=Views(mlflow.pages if mlflow else None, lambda: dispatcher.away),
        jobs=jobs,
        analyses=Analyses(jobs, settings.home / "analyses", has_mlflow=mlflow is not None),
        reproductions=Reproductions(
            jobs,
            settings.home / "reproductions",
            record,
            settings.corpora,
            settings.results,
            settings.storage_folder,
        ),
        accounts=people,
        identity=Identity(settings, people, keeper),
        audit=Audit(record.url, settings.audit_entries),
        mlflow=mlflow,
        disk_use=measure_now_and_then(settings),
        store=StoreProbe(settings.storage_folder),
    )
    app.state.readiness = SingleFlight(partial(health.look, app.state.service))
    app.state.metrics = metrics.make_registry(app.state.service, read_version())
    if mlflow is not None and mlflow.token is not None:
        app.mount(mlflow_proxy.PLACE, MlflowProxy(mlflow, record))
    answer_errors(app)
    app.add_exception_handler(HTTPException, answer_http_error)
    if traces.is_on():
        app.add_middleware(RequestSpans)
    app.add_middleware(Validators)
    app.add_middleware(Compression)
    find_scope = require_scopes(app, PUBLIC)
    app.add_middleware(
        BodyLimits,
        find_scope=lambda method, path: (
            find_scope(method, path) or mlflow_proxy.find_scope(method, path)
        ),
        refuse=mlflow_proxy.answer_refusal,
    )
    service: Service = app.state.service
    app.add_middleware(
        Access,
        identity=service.identity,
        session_keeper=keeper,
        rates=Rates(settings),
        audit=service.audit,
    )
    app.add_middleware(SafeHeaders)
    app.add_middleware(Latencies)
    app.add_middleware(HeadAsGet)  # the last one is the first to see a request
    return app


@cache
def _read_examples() -> dict[str, dict[str, object]]:
    return json.loads(EXAMPLES.read_text(encoding="utf-8"))


def _add_examples(page: dict[str, Any]) -> dict[str, Any]:
    """Return the OpenAPI document with examples of requests and of answers."""
    for path, examples in _read_examples()["requests"].items():
        content = page["paths"][path]["post"]["requestBody"]["content"]
        content["application/json"]["examples"] = examples
    for model, example in _read_examples()["answers"].items():
        page["components"]["schemas"][model]["examples"] = [example]
    return page


def create_local_app(settings: Settings) -> FastAPI:
    """Return an application that answers from the code alone: catalogue, kinds and previews."""
    app = FastAPI()
    app.state.settings = settings
    _include_previews(app.router)
    answer_errors(app)
    app.add_middleware(AsOperator)
    return app


@cache
def _make_routes() -> Sequence[BaseRoute]:
    """Return all routes but FastAPI's own and MLflow's: the same for every application.

    FastAPI prepares a route when it is first looked at, which takes seconds of all routes. So it
    is done once in a process: tests make hundreds of applications.
    """
    router = APIRouter()
    guard = [READ]
    _include_previews(router, guard, REFUSALS)  # before `/experiments/{id}`
    for routes in (
        experiments,
        trials,
        comparisons,
        overviews,
        pareto,
        races,
        cluster,
        importances,
        streams,
        analyses,
        reproductions,
        storage,
        accounts,
    ):
        router.include_router(routes.router, prefix="/v1", dependencies=guard, responses=REFUSALS)
    router.include_router(health.router, responses=describe_errors(403))
    router.include_router(metrics.router, dependencies=guard, responses=REFUSALS)
    add_pages(router, guard)
    return router.routes


def _include_previews(
    into: APIRouter, guard: Sequence[params.Depends] = (), refusals: Responses | None = None
) -> None:
    for router in (experiments.previews, analyses.kinds, reproductions.suites, catalogue.router):
        into.include_router(router, prefix="/v1", dependencies=guard, responses=refusals)

"""Tells whether the process lives, and whether all that it needs is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field
from sqlalchemy.exc import SQLAlchemyError

from eigensweep.models import MODELS
from eigensweep.service.api.answers.schemas import AnswerModel
from eigensweep.service.api.parts import Service
from eigensweep.service.record.sql.database import find_damage
from eigensweep.store.places.disk_space import explain_low, explain_unwritable, find_low
from eigensweep.store.places.durable_files import StoreAwayError
from eigensweep.tasks import TASKS

router = APIRouter(tags=["health"])

LONGEST_SECONDS = 15.0
"""How long all checks together may take; who asks meanwhile gets the answer of the same look."""
LATE = "a disk or the database has not answered for 15 s"


class Alive(AnswerModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Check(AnswerModel):
    """One thing that the service needs."""

    ready: bool
    detail: str = Field(description="What is wrong; empty if nothing is, and for strangers")
    url: str | None = None


class Readiness(AnswerModel):
    """Everything that the service needs, by name."""

    ready: bool
    checks: dict[str, Check]


@router.get("/healthz", summary="Is the process alive?")
async def healthz() -> Alive:
    """Return an answer, which shows that the process lives."""
    return Alive()


@router.get(
    "/readyz",
    summary="Can experiments run?",
    responses={503: {"model": Readiness, "description": "Something is not ready, see `checks`"}},
)
async def readyz(request: Request, response: Response) -> Readiness:
    """Check database, leader, MLflow, launcher, packages, disks and store; 503 if one is not ready.

    A package that cannot be loaded is named, and does not make the service unready. Who sends no
    token is told what is not ready, and no details.
    """
    try:
        checks = await asyncio.wait_for(request.app.state.readiness.ask(), LONGEST_SECONDS)
    except TimeoutError:
        checks = {"answers": Check(ready=False, detail=LATE)}
    ready = all(check.ready for check in checks.values())
    if request.state.caller is None:
        checks = {name: Check(ready=check.ready, detail="") for name, check in checks.items()}
    if not ready:
        response.status_code = 503
    return Readiness(ready=ready, checks=checks)


def look(service: Service) -> dict[str, Check]:
    """Return how everything is that the service needs."""
    return {name: check(service) for name, check in CHECKS.items()}


def _database(service: Service) -> Check:
    if (damage := find_damage(service.record.url)) is not None:
        return Check(ready=False, detail=damage)
    try:
        service.record.ping()
    except SQLAlchemyError as error:
        return Check(ready=False, detail=str(error).split("\n", 1)[0])
    return Check(ready=True, detail="")


def _mlflow(service: Service) -> Check:
    if service.mlflow is None:
        return Check(ready=True, detail="")
    problem = service.mlflow.find_problem()
    return Check(ready=problem is None, detail=problem or "", url=service.mlflow.pages)


def _leader(service: Service) -> Check:
    """Who waits for the lead is ready: what is posted to it waits in the record for the leader."""
    if (leadership := service.record.leadership) is None:
        return Check(ready=True, detail="")
    lead = leadership.lead
    is_heard = leadership.term is not None or (lead is not None and not lead.is_silent)
    return Check(ready=is_heard, detail=leadership.words)


def _launcher(service: Service) -> Check:
    if service.record.waits:
        return Check(ready=True, detail="another service starts drivers")
    problem, problems = service.dispatcher.explain_problem(), service.dispatcher.problems
    words = "; ".join(f"experiment {id} is tried again: {why}" for id, why in problems.items())
    return Check(ready=problem is None, detail=problem or words)


def _packages(service: Service) -> Check:
    left_out = MODELS.problems | TASKS.problems
    words = "; ".join(f"{entry} was left out: {why}" for entry, why in left_out.items())
    return Check(ready=True, detail=words)  # the service works without them


def _disk(service: Service) -> Check:
    settings = service.settings
    for name, folder in settings.disk_folders.items():
        look = partial(_find_disk_problem, folder, settings.least_free_bytes)
        with suppress(StoreAwayError):  # the check of the store tells that
            problem = service.look_at(name, look)
            if problem is not None:
                return Check(ready=False, detail=problem)
    return Check(ready=True, detail="")


def _find_disk_problem(folder: Path, least: int) -> str | None:
    with suppress(OSError):  # what cannot be asked is not known to be full
        if least and (low := find_low(folder, least)) is not None:
            return explain_low(folder, low, least)
    return explain_unwritable(folder)


def _store(service: Service) -> Check:
    problem = service.store.find_problem()
    return Check(ready=problem is None, detail=problem or "")


CHECKS: dict[str, Callable[[Service], Check]] = {
    "database": _database,
    "leader": _leader,
    "mlflow": _mlflow,
    "launcher": _launcher,
    "packages": _packages,
    "disk": _disk,
    "store": _store,
}

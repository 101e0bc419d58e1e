"""What the routes work with, and how they get hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from service.analyses import Analyses
from service.dispatcher import Dispatcher
from service.events import Tailer
from service.record import Record
from service.schemas import Views
from service.settings import Settings


@dataclass(frozen=True)
class Service:
    """The parts of a service."""

    settings: Settings
    record: Record
    dispatcher: Dispatcher
    tailer: Tailer
    views: Views
    analyses: Analyses
    mlflow_uri: str | None
    """Where the service itself asks whether MLflow lives; None: there is none."""


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


TheService = Annotated[Service, Depends(_service)]
"""A route's parameter of this type is the service that answers the request."""

"""What the routes work with, and how they get hold of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from eigensweep.service.api.schemas import Views
from eigensweep.service.queue.analyses import Analyses
from eigensweep.service.queue.dispatcher import Dispatcher
from eigensweep.service.record.events import Tailer
from eigensweep.service.record.record import Record
from eigensweep.service.settings import Settings


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

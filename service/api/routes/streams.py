"""Streams the events of an experiment. Runs in the service's process."""

from __future__ import annotations

from collections.abc import AsyncIterable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from eigensweep.service.api.errors import describe_errors
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId

router = APIRouter(tags=["experiments"])


def _check_id(service: TheService, id: ExperimentId) -> str:
    return service.record.row(id).id


@router.get(
    "/experiments/{id}/events",
    summary="Follow an experiment",
    response_class=EventSourceResponse,
    responses=describe_errors(401, 404, 422, 503),
)
async def follow(
    service: TheService,
    request: Request,
    id: Annotated[str, Depends(_check_id)],
    last_event_id: Annotated[
        int,
        Header(ge=0, le=2**62, description="Id of the last event that was received; default: none"),
    ] = 0,
) -> AsyncIterable[ServerSentEvent]:
    """Stream server-sent events until the experiment is over; past events come first.

    The stream also ends a few seconds after the token of who follows it was revoked or has expired.

    Each has an `id`, a kind in `event` (`experiment.started`, `trial.report`, `trial.completed`,
    ...) and JSON in `data`: `experiment`, `at`, and for a trial `trial`, `arm`, `step`, `steps`,
    `attempt`, `metrics` or `value`. Comments in between keep a quiet connection open.
    """
    is_known = partial(service.identity.knows, request)
    caller = request.client and request.client.host, tuple(request.headers.items())
    async for event in service.tailer.stream(id, last_event_id, caller, is_known):
        yield event

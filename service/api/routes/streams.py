"""Streams the events of an experiment. Runs in the service's process."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse

from eigensweep.service.api.answers.written import DescribedRoute
from eigensweep.service.api.parts import TheService
from eigensweep.service.api.routes.experiments import ExperimentId

router = APIRouter(tags=["experiments"], route_class=DescribedRoute)

EVENT: Final[dict[str, object]] = {
    "type": "object",
    "required": ["data", "event", "id"],
    "properties": {
        "data": {"type": "string", "contentMediaType": "application/json"},
        "event": {"type": "string"},
        "id": {"type": "string"},
    },
}
"""A server-sent event as OpenAPI describes one."""
HEADERS: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""The second one is for nginx, which would keep events back."""


async def _check_id(service: TheService, id: ExperimentId) -> str:
    await service.tailer.find_state(id, 0)
    return id


@router.get(
    "/experiments/{id}/events",
    summary="Follow an experiment",
    response_class=StreamingResponse,
    responses={200: {"content": {EventSourceResponse.media_type: {"itemSchema": EVENT}}}},
)
async def follow(
    service: TheService,
    request: Request,
    id: Annotated[str, Depends(_check_id)],
    last_event_id: Annotated[
        int,
        Header(ge=0, le=2**62, description="Id of the last event that was received; default: none"),
    ] = 0,
) -> EventSourceResponse:
    """Stream server-sent events until the experiment is over; past events come first.

    The stream also ends a few seconds after the token of who follows it was revoked or has expired.

    Each has an `id`, a kind in `event` (`experiment.started`, `trial.report`, `trial.completed`,
    ...) and JSON in `data`: `experiment`, `at`, and for a trial `trial`, `arm`, `step`, `steps`,
    `attempt`, `metrics` or `value`. Comments in between keep a quiet connection open.
    """
    is_known = partial(service.identity.knows, request)
    caller = request.client and request.client.host, tuple(request.headers.items())
    events = service.tailer.stream(id, last_event_id, caller, is_known)
    return EventSourceResponse(events, headers=HEADERS)

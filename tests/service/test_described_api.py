"""Every operation of the OpenAPI page is asked, and each answer is held to the page.

schemathesis makes the requests: the page's examples, the limits of each field, what breaks them,
and sequences in which one answer leads to the next request.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fastapi import FastAPI
from pydantic import SecretStr
from starlette.testclient import TestClient

from eigensweep.service.api.app import create_app

TOKEN = "the-token-of-the-environment"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ACCEPTED = ["2xx", "3xx", "401", "403", "404", "409", "422", "429"]
"""A request that fits the page may be refused with 422: a schema cannot say that a cursor is one,
or that a model fits its task. It may not be called anything else, such as 400 or 415."""


@pytest.fixture
def app(settings: Any, record: Any, dispatcher: Any) -> FastAPI:
    torch.set_flush_denormal(False)  # a test before may have trained; subnormal numbers are drawn
    return create_app(settings.model_copy(update={"token": SecretStr(TOKEN)}), record, dispatcher)


def find_failures(app: FastAPI, examples: int, **more: Any) -> tuple[list[str], set[str]]:
    """Return what went against the page, in words, and the operations that were asked."""
    import schemathesis  # here, for each process that collects the tests loads what stands above
    from schemathesis.config import SchemathesisConfig
    from schemathesis.engine import Status, events, from_schema

    config = SchemathesisConfig.from_dict(
        {
            "headers": HEADERS,
            "continue-on-failure": True,
            "max-stream-events": 3,
            "suppress-health-check": ["all"],
            "checks": {"positive_data_acceptance": {"expected-statuses": ACCEPTED}},
            "generation": {"max-examples": examples, "database": "none", "no-shrink": True},
            **more,
        }
    )
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config, headers=HEADERS)
    failures, asked = [], set()
    for event in from_schema(schema).execute():
        if isinstance(event, events.FatalError):
            raise event.exception
        if isinstance(event, events.NonFatalError):
            failures.append(f"{event.label}: {event.value!r}")
        if isinstance(event, events.ScenarioFinished):
            if event.status is not Status.SKIP:
                asked.add(event.label)
            for checks in event.recorder.checks.values():
                for found in (check.failure_info for check in checks):
                    if found is not None:
                        words = f"{found.failure.operation}: {found.failure}\n{found.code_sample}"
                        failures.append(words)
    return failures, asked


def list_operations(app: FastAPI) -> set[str]:
    return {
        f"{method.upper()} {path}"
        for path, operations in app.openapi()["paths"].items()
        for method in operations
    }


SPECS = [f"POST /v1/experiments{path}" for path in ("", "/preview", "/{id}/extend")]
SHORT: dict[str, Any] = {
    "seed": 1,
    "phases": {"fuzzing": {"enabled": False}, "stateful": {"max-steps": 3}},
    "operations": [{"include-name": SPECS, "phases": {"coverage": {"enabled": False}}}],
}
"""Of specs, whose schema is by far the largest, only the examples; nothing at random."""


EXAMPLES: dict[str, Any] = {
    "seed": 1,
    "phases": {phase: {"enabled": False} for phase in ("coverage", "fuzzing", "stateful")},
}
"""Only the examples of the page."""


def test_every_example_of_the_page_is_answered_as_the_page_says(app: FastAPI) -> None:
    failures, asked = find_failures(app, 1, **EXAMPLES)
    assert not failures, "\n\n".join(failures)
    assert "POST /v1/experiments" in asked


def test_a_number_of_days_is_a_number(app: FastAPI) -> None:
    with TestClient(app, headers=HEADERS) as client:
        for wrong in ("7", True):
            asked = {"keep": "best", "older_than_days": wrong}
            answer = client.post("/v1/storage/prune", json=asked)
            assert answer.status_code == 422, wrong


@pytest.mark.slow
def test_no_answer_is_an_error_or_missing_on_the_page(app: FastAPI) -> None:
    failures, asked = find_failures(app, 1, **SHORT)
    assert not failures, "\n\n".join(failures)
    assert asked >= list_operations(app)


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_nor_is_one_of_many_more(app: FastAPI) -> None:
    failures, asked = find_failures(app, 60, **{"max-time": 1800})
    assert not failures, "\n\n".join(failures)
    assert asked >= list_operations(app)

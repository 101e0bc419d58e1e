"""The service's JSON on experiments and trials, as far as the client reads it; /docs has all."""

from __future__ import annotations

from typing import TypedDict


class TrialJson(TypedDict, total=False):
    """A trial, in a list or alone."""

    number: int
    arm: str
    state: str
    step: int | None
    steps: int | None
    value: float
    params: dict[str, object]
    metrics: dict[str, float | None]
    reopened_for: str | None


class MetricJson(TypedDict, total=False):
    """What trials are ranked by."""

    name: str
    unit: str
    better: str


class UsageJson(TypedDict):
    """What trials have used."""

    cpu_hours: float
    gpu_hours: float


class WordsJson(TypedDict):
    """Why an experiment comes on slowly."""

    words: str


class LinksJson(TypedDict, total=False):
    """Where to look further."""

    page: str
    mlflow: str | None


class DoneJson(TypedDict):
    """What became of one of several experiments that were acted on."""

    id: str
    state: str | None
    problem: str | None


class ExperimentJson(TypedDict, total=False):
    """An experiment, in a list or alone."""

    id: str
    name: str
    project: str
    owner: str | None
    state: str
    priority: int
    queue_place: int | None
    progress: dict[str, float | None]
    """Numbers of trials by state, `total`, steps, and the `fraction` that is done."""
    metric: MetricJson
    best: TrialJson | None
    baseline: float | None
    reused_from: list[str]
    eta_seconds: float | None
    usage: UsageJson
    notices: list[WordsJson]
    error: str | None
    links: LinksJson
    created_at: str
    delivered: bool

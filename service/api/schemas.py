"""What the API says: the shapes of its answers, and how rows of the record become them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from eigensweep.direction import Better
from eigensweep.service.api.examples import EXPERIMENT, TRIAL, TRIAL_SUMMARY
from eigensweep.service.record.progress import Progress, progress
from eigensweep.service.record.queries import ExperimentRecord, TrialRecord
from eigensweep.workers.shared.states import ExperimentState, TrialState

Item = TypeVar("Item")


class Answer(BaseModel):
    """A shape of the API."""

    model_config = ConfigDict(frozen=True)


class Page(Answer, Generic[Item]):
    """A piece of a list; `next_cursor` asks for the next one."""

    items: list[Item]
    next_cursor: str | None = Field(description="Give it as `cursor`; null: this was the last page")


class Metric(Answer):
    """The number that trials are ranked by."""

    name: str = Field(examples=["cross_entropy"])
    unit: str = Field(examples=["nats"])
    better: Better


class ProgressNow(Answer):
    """Trials by state, and optimizer steps done of those expected."""

    total: int | None = Field(description="Trials there will be; null while that is unknown")
    waiting: int
    running: int
    completed: int
    pruned: int
    diverged: int
    failed: int
    cancelled: int
    reused: int
    invalid: int
    steps_done: int
    steps_total: int | None = Field(
        description="Expected: a trial that ended early counts as long as it ran"
    )
    fraction: float | None = Field(ge=0, le=1)


class ReportNow(Answer):
    """What a trial reported at a rung."""

    step: int
    at: datetime
    metrics: dict[str, float]


class AttemptNow(Answer):
    """One start of a trial; more than one where a process was lost."""

    attempt: int
    started_at: datetime
    ended_at: datetime | None
    reason: str | None = Field(description="Why it was cut short; null: it was not")
    node: str | None
    pid: int | None
    device: str | None


class TrialLinks(Answer):
    """Where more of a trial is."""

    self: str
    mlflow: str | None = Field(description="Its run in MLflow's pages, once there is one")


class TrialSummary(Answer):
    """A trial in a list: what it is, how far it is, how it did."""

    model_config = ConfigDict(json_schema_extra={"examples": [TRIAL_SUMMARY]})

    number: int
    arm: str
    state: TrialState
    params: dict[str, Any] = Field(description="The point: dotted path to value")
    hash: str | None = Field(description="Names the configuration's results, whatever the seed")
    attempt: int
    value: float | None = Field(description="Best validation value of the experiment's metric")
    best_step: int | None
    step: int
    steps: int
    metrics: dict[str, float | None] = Field(
        description="Validation metrics at the best step; while it trains, of the newest report"
    )
    test: dict[str, float | None] = Field(description="Test metrics at the best step")
    parameters: dict[str, int] | None = Field(description="Counted `free` and `stored`")
    seconds: float | None
    error: str | None = Field(description="A failed trial's traceback; why a point is invalid")
    started_at: datetime | None
    ended_at: datetime | None
    links: TrialLinks


class TrialNow(TrialSummary):
    """One configuration with all that is known of it."""

    model_config = ConfigDict(json_schema_extra={"examples": [TRIAL]})

    config: dict[str, Any] | None = Field(description="The whole configuration; null: invalid")
    result: dict[str, Any] | None = Field(description="All that the trainer said at its end")
    reports: list[ReportNow]
    attempts: list[AttemptNow]


class ExperimentLinks(Answer):
    """Where more of an experiment is."""

    self: str
    trials: str
    events: str
    cancel: str
    mlflow: str | None = Field(description="Its run in MLflow's pages, once there is one")


class ExperimentNow(Answer):
    """An experiment: what was asked, how far it is, what is best so far."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXPERIMENT]})

    id: str
    name: str
    project: str
    state: ExperimentState
    priority: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    spec: dict[str, Any] = Field(description="As posted, defaults filled in: an ExperimentSpec")
    baseline: float | None = Field(description="What remembering nothing scores on the metric")
    metric: Metric
    progress: ProgressNow
    eta_seconds: float | None = Field(
        description="From the speed so far; null while unknown and when over"
    )
    best: TrialNow | None
    error: str | None
    cancel_requested: bool
    links: ExperimentLinks


class Views:
    """Turns rows into answers, with links to MLflow's pages at `mlflow_url`."""

    def __init__(self, mlflow_url: str | None) -> None:
        self._mlflow = None if mlflow_url is None else mlflow_url.rstrip("/")

    def experiment(self, record: ExperimentRecord) -> ExperimentNow:
        """Return an experiment as the API tells it."""
        row = record.experiment
        now = progress(row, record.counts, time.time())
        here = f"/v1/experiments/{row.id}"
        return ExperimentNow(
            id=row.id,
            name=row.name,
            project=row.project,
            state=row.state,
            priority=row.priority,
            created_at=_moment(row.created_at),
            started_at=_maybe_moment(row.started_at),
            finished_at=_maybe_moment(row.finished_at),
            spec=row.spec,
            baseline=row.baseline,
            metric=Metric(name=row.metric, unit=row.unit, better=row.better),
            progress=_progress_now(now),
            eta_seconds=now.eta_seconds,
            best=None if record.best is None else self.trial(record.best),
            error=row.error,
            cancel_requested=row.intent == "cancel",
            links=ExperimentLinks(
                self=here,
                trials=f"{here}/trials",
                events=f"{here}/events",
                cancel=f"{here}/cancel",
                mlflow=self.run(row.run_id),
            ),
        )

    def summary(self, record: TrialRecord) -> TrialSummary:
        """Return a trial as a list tells it."""
        return TrialSummary(**self._summary(record))

    def trial(self, record: TrialRecord) -> TrialNow:
        """Return a trial as the API tells it."""
        return TrialNow(
            **self._summary(record),
            config=record.trial.config,
            result=record.trial.result,
            reports=[
                ReportNow(step=r.step, at=_moment(r.at), metrics=r.metrics) for r in record.reports
            ],
            attempts=[
                AttemptNow(
                    attempt=a.attempt,
                    started_at=_moment(a.started_at),
                    ended_at=_maybe_moment(a.ended_at),
                    reason=a.reason,
                    node=a.place.get("node"),
                    pid=a.place.get("pid"),
                    device=a.place.get("device"),
                )
                for a in record.attempts
            ],
        )

    def _summary(self, record: TrialRecord) -> dict[str, Any]:
        row = record.trial
        result = row.result or {}
        newest = record.reports[-1].metrics if record.reports else {}
        return {
            "number": row.number,
            "arm": row.arm,
            "state": row.state,
            "params": row.params,
            "hash": row.config_hash,
            "attempt": row.attempt,
            "value": row.value,
            "best_step": result.get("best_step"),
            "step": row.step,
            "steps": row.steps,
            "metrics": result.get("valid") or newest,
            "test": result.get("test") or {},
            "parameters": result.get("parameters"),
            "seconds": result.get("seconds"),
            "error": row.error,
            "started_at": _maybe_moment(row.started_at),
            "ended_at": _maybe_moment(row.ended_at),
            "links": TrialLinks(
                self=f"/v1/experiments/{row.experiment_id}/trials/{row.number}",
                mlflow=self.run(row.run_id),
            ),
        }

    def run(self, run_id: str | None) -> str | None:
        """Return where MLflow's pages show a run, None where there is none."""
        if run_id is None or self._mlflow is None:
            return None
        return f"{self._mlflow}/#/runs/{run_id}"  # MLflow finds the run's experiment itself


def _progress_now(now: Progress) -> ProgressNow:
    return ProgressNow(
        total=now.total,
        steps_done=now.steps_done,
        steps_total=now.steps_total,
        fraction=now.fraction,
        **now.trials,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe_moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else _moment(seconds)

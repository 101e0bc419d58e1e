"""The answers of the API, and how they are made of rows of the record.

Runs in the service's process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, Generic, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from eigensweep.common.direction import Better
from eigensweep.common.made_of import MadeOf
from eigensweep.protocol.messages import ConfigJson, Notice, NoticeKind, Place, SpecJson
from eigensweep.protocol.states import ENDED, ExperimentState, TrialState
from eigensweep.results.ranking import RANKED
from eigensweep.results.statistics import Summary
from eigensweep.results.trial_result import Metrics, summarize_stored
from eigensweep.search_spaces.checks.preview import ArmMemory
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.service.record.journal import spent_seconds
from eigensweep.service.record.sql.tables import AttemptRow, ExperimentRow, JobRow, TrialRow
from eigensweep.service.record.views.progress import compute_progress
from eigensweep.service.record.views.queries import ExperimentRecord, TrialRecord

Item = TypeVar("Item")


TRAINING: Final = "workflowType=machine_learning"
"""What makes MLflow's pages show model training; else they show their part for chats."""


WITHOUT_VALUE: Final = (
    "No evaluation gave a finite value of the objective's metric, although the loss was finite: "
    "the trial has no place in the ranking, and the sampler is told no value."
)


KEPT: Final = 1000
"""Trials that are kept as lists show them: many people, and pages again and again, ask for the same
ones. They take a few kilobytes each."""


class AnswerModel(MadeOf):
    """A part of an answer: seconds since 1970 are times."""

    model_config = ConfigDict(frozen=True, from_attributes=True)


class Asked(BaseModel):
    """A part of a request, which holds nothing else."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PageAsked(Asked):
    """Which page of a list."""

    limit: int = Field(50, ge=1, le=200)
    cursor: str | None = Field(
        None, max_length=2000, description="`next_cursor` of the page before"
    )  # a name of 120 emoji makes one of 1,956


class Items(AnswerModel, Generic[Item]):
    """A list."""

    items: list[Item]


class Page(Items[Item], Generic[Item]):
    """A page of a list."""

    next_cursor: str | None = Field(
        description="Send it as `cursor` to get the next page; null on the last page"
    )


class Metric(AnswerModel):
    """The number that trials are ranked by."""

    name: str = Field(examples=["cross_entropy"])
    unit: str = Field(examples=["nats"])
    better: Better


class ProgressNow(AnswerModel):
    """Trials by state, and optimizer steps: done, and to be expected."""

    total: int | None = Field(
        description="How many trials there will be; null while that is unknown"
    )
    waiting: int
    running: int
    completed: int
    pruned: int
    diverged: int
    stalled: int
    failed: int
    cancelled: int
    reused: int
    invalid: int
    steps_done: int
    steps_total: int | None = Field(
        description="Steps to be expected; a trial that ended early counts with the steps it took"
    )
    fraction: float | None = Field(
        ge=0,
        le=1,
        description="Null while the total is unknown, and while open trials have done all "
        "expected steps: in a race, or in a last evaluation",
    )


class ReportNow(AnswerModel):
    """What a trial reported at a rung."""

    step: int
    at: datetime
    metrics: Metrics


class TakeoverNow(AnswerModel):
    """How population-based training replaced a trial."""

    step: int = Field(description="Where that was")
    source: int = Field(
        description="Number of the trial whose weights and optimizer state it took over"
    )
    params: dict[str, Scalar] = Field(description="What it went on with, by dotted path")


class AttemptNow(AnswerModel):
    """One process of a trial. There are several if a process was lost, or in a population."""

    attempt: int
    started_at: datetime
    ended_at: datetime | None
    reason: str | None = Field(description="Why it ended early; null if it did not")
    node: str | None = Field(description="Name of its machine; null where it is not known yet")
    node_id: str | None = Field(description="As Ray names it; several nodes may have one name")
    pid: int | None
    device: str | None
    lanes: int | None = Field(
        description="How many lanes the engine has that trains it; null if the process is its own"
    )


class UsageNow(AnswerModel):
    """What was used so far, up to the newest reports."""

    trial_seconds: float = Field(description="Seconds for which trials had a process, summed up")
    cpu_hours: float = Field(description="The same in hours, times the CPU cores of a trial")
    gpu_hours: float = Field(
        description="The same, times its GPUs. Trials that share an engine have equal parts of it"
    )

    @classmethod
    def made_of(cls, source: Any, /, **more: Any) -> Self:
        """Return what a row of the record says."""
        cpu, gpu = source.cpu_seconds / 3600, source.gpu_seconds / 3600
        return cls(trial_seconds=source.trial_seconds, cpu_hours=cpu, gpu_hours=gpu, **more)


class TrialLinks(AnswerModel):
    """Paths and addresses of a trial."""

    self: str
    mlflow: str | None = Field(description="Its run on MLflow's pages; null before there is one")


class TrialHead(AnswerModel):
    """The best trial of an experiment in a list."""

    number: int
    arm: str
    state: TrialState
    params: dict[str, Scalar] = Field(description="What the search chose, by dotted path")
    value: float | None = Field(description="Best validation value of the experiment's metric")
    links: TrialLinks


class TrialSummary(TrialHead):
    """A trial in a list: its settings, its state, its scores."""

    lineage: list[TakeoverNow] = Field(
        description="What population-based training made of it, by step; where it is not empty, "
        "`params` and `hash` are those that the trial began with"
    )
    hash: str | None = Field(
        description="Content hash of the configuration, without seed and budget"
    )
    attempt: int
    best_step: int | None = Field(
        description="Where validation was best; of several seeds the mean of that, rounded"
    )
    step: int
    steps: int
    metrics: dict[str, float | None] = Field(
        description="Validation metrics at the best step; before the end, of the newest report, "
        "with the best value so far as `objective`"
    )
    test: dict[str, float | None] = Field(description="Test metrics at the best step")
    statistics: dict[str, Summary] = Field(
        description="Over the replicates: `value`, and each validation and test metric at the "
        "best step as `valid/NAME` and `test/NAME`; empty before the end"
    )
    baseline: float | None = Field(
        description="Memoryless baseline of its own task, which a search may vary; null before the "
        "end and if unknown"
    )
    parameters: dict[str, int] | None = Field(
        description="How many parameters the model has: `free` and `stored`"
    )
    seconds: float | None = Field(
        description="Seconds of training, summed over replicates; lanes share the time that "
        "passes. Null if unknown, as of a trial that was cut off"
    )
    error: str | None = Field(
        description="Traceback of a failed trial, why a point is invalid, or why a trial that "
        "completed has no value"
    )
    reopened_for: str | None = Field(
        description="What a trial trains on for that had ended, such as seeds of a race; its value "
        "and scores are those of before. Null for every other trial"
    )
    started_at: datetime | None
    ended_at: datetime | None
    usage: UsageNow


class TrialNow(TrialSummary):
    """A trial in full."""

    config: ConfigJson | None = Field(
        description="The whole configuration; null if the point is invalid"
    )
    result: dict[str, object] | None = Field(
        description="The result as the trainer reported it at the end"
    )
    reports: list[ReportNow]
    attempts: list[AttemptNow]


class NoticeNow(AnswerModel):
    """Why an experiment comes on more slowly than it could, or is not in MLflow or deleted yet."""

    kind: NoticeKind
    words: str = Field(description="What it is, and what would help")
    node: str | None = Field(description="Host name of a node that is left out; else null")
    until: datetime | None = Field(description="When that node is tried again; else null")


class HeadLinks(AnswerModel):
    """Paths and addresses of an experiment in a list."""

    self: str
    page: str = Field(description="Its page for browsers")
    trials: str
    events: str
    mlflow: str | None = Field(
        description="The chart of its trials on MLflow's pages; null before there is one"
    )
    run: str | None = Field(
        description="Its own run there, with report and plots; null before there is one"
    )


class ExperimentLinks(HeadLinks):
    """Paths and addresses of an experiment, with those that change it."""

    cancel: str
    pause: str
    resume: str
    prioritize: str
    retry: str
    extend: str
    archive: str
    unarchive: str
    deliver: str
    delete: str


class ExperimentSummary(AnswerModel):
    """An experiment in a list: its progress and the head of its best trial, without its spec."""

    id: str
    owner: str = Field(description="The user who posted it; `operator` is who runs the service")
    name: str
    project: str
    state: ExperimentState
    priority: int = Field(description="Higher ones start first, and have places first")
    queue_place: int | None = Field(
        description="Its place in the queue, from 1; null if it is not queued"
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    archived_at: datetime | None = Field(
        description="When it was archived, so that lists leave it out; null if it was not"
    )
    kept: Literal["all", "last", "best", "none"] = Field(
        description="Which checkpoints are left of trials that had ended when some were removed: "
        "see POST /v1/storage/prune; `all`: none were removed"
    )
    baseline: float | None = Field(
        description="What a memoryless model scores on the metric; null if unknown"
    )
    metric: Metric
    progress: ProgressNow
    eta_seconds: float | None = Field(
        description="Estimated from the speed so far; null while that is unknown, while leaders "
        "of a race train more seeds, and after the end"
    )
    wall_seconds: float = Field(
        description="Seconds since its first start, without those in which it was paused, over, or "
        "waited for a place"
    )
    usage: UsageNow
    best: TrialHead | None = Field(description="The first in the ranking so far")
    error: str | None = Field(description="Why it failed; in a list the last line of that")
    notices: list[NoticeNow] = Field(
        description="Why its progress is slow now, such as a nearly full disk or a cordoned node, "
        "why it is not deleted or pruned yet, or that different code of a package trained its "
        "trials; mostly empty. The answer about one experiment also names webhooks that could not "
        "be told that it is over; lists do not"
    )
    cancel_requested: bool = Field(description="Whether its state is `cancelling`")
    delivered: bool = Field(
        description="Whether it is over and MLflow has all of it; also true if MLflow refused it"
    )
    links: HeadLinks


class ExperimentNow(ExperimentSummary):
    """An experiment: its spec, its progress, its best trial so far."""

    best: TrialNow | None = Field(description="The first in the ranking so far, in full")
    reused_from: list[str] = Field(
        description="The experiments from which the first 1,000 reused trials have their results:"
        " same configuration, seeds, budget and code"
    )
    spec: SpecJson = Field(description="The ExperimentSpec as posted, with defaults filled in")
    links: ExperimentLinks


class PostedExperiment(ExperimentNow):
    """An experiment that was posted, with the memory that its trials will take."""

    memory: dict[str, ArmMemory] = Field(description="By arm, what its largest trial takes")
    warnings: list[str] = Field(description="Settings that will have no effect, and why")


class Views:
    """Makes answers of rows, with links to MLflow's pages at `mlflow_url`.

    `explain_away` says why Ray cannot be asked at this moment, for all that waits for it.
    """

    def __init__(
        self, mlflow_url: str | None, explain_away: Callable[[], str | None] = lambda: None
    ) -> None:
        self._explain_away = explain_away
        self._mlflow = None if mlflow_url is None else mlflow_url.rstrip("/")
        self.listed_trial = lru_cache(KEPT)(lambda stored: self.summary(stored.read()))
        """Returns a trial as it stands in a list, kept by what is stored of it."""

    def experiment(self, record: ExperimentRecord) -> ExperimentNow:
        """Return an experiment in full."""
        here = f"/v1/experiments/{record.experiment.id}"
        actions = ExperimentLinks.model_fields.keys() - HeadLinks.model_fields.keys()
        links = self._links(record.experiment) | {name: f"{here}/{name}" for name in actions}
        return ExperimentNow.made_of(
            record.experiment,
            **self._describe(record),
            links=links,
            best=None if record.best is None else self.trial(record.best),
            reused_from=record.sources,
        )

    def listed(self, record: ExperimentRecord) -> ExperimentSummary:
        """Return an experiment as it stands in a list."""
        lines, best = (record.experiment.error or "").strip().splitlines(), record.best
        return ExperimentSummary.made_of(
            record.experiment,
            **self._describe(record),
            links=self._links(record.experiment),
            best=best and TrialHead.made_of(best.trial, links=self._link(best.trial)),
            error=lines[-1] if lines else None,
        )

    def _describe(self, record: ExperimentRecord) -> dict[str, object]:
        """Return what an experiment's row does not say by itself, in a list or alone."""
        row = record.experiment
        now = compute_progress(row, record.counts, time.time())
        return {
            "queue_place": record.place,
            "kept": row.kept or "all",
            "metric": Metric(name=row.metric, unit=row.unit, better=row.better),
            "progress": vars(now) | now.trials,
            "eta_seconds": now.eta_seconds,
            "wall_seconds": spent_seconds(row, time.time()),
            "usage": UsageNow.made_of(row),
            "notices": self._list_notices(record),
            "cancel_requested": row.state == "cancelling",
            "delivered": row.state in ENDED and row.tracked,
        }

    def _list_notices(self, record: ExperimentRecord) -> list[Notice]:
        row = record.experiment
        told = [Notice.from_dict(notice) for notice in row.notices or ()]
        told += map(_tell_unsent, record.unsent)
        away = None if row.state in {"paused", *ENDED} else self._explain_away()
        return told if away is None else [*told, Notice("ray", away)]

    def _links(self, row: ExperimentRow) -> dict[str, str | None]:
        here = f"/v1/experiments/{row.id}"
        return {
            "self": here,
            "page": f"/experiments/{row.id}",
            "trials": f"{here}/trials",
            "events": f"{here}/events",
            "mlflow": self.chart(row),
            "run": self.run(row.run_id, row.run_project),
        }

    def _link(self, row: TrialRow) -> dict[str, str | None]:
        here = f"/v1/experiments/{row.experiment_id}/trials/{row.number}"
        return {"self": here, "mlflow": self.run(row.run_id, row.run_project)}

    def summary(self, record: TrialRecord) -> TrialSummary:
        """Return a trial as it stands in a list."""
        row = record.trial
        result = row.scores
        newest = record.reports[-1].metrics if record.reports else {}
        return TrialSummary.made_of(
            row,
            links=self._link(row),
            lineage=row.lineage or (),
            hash=row.config_hash,
            metrics=result.get("valid") or _name_as_at_the_end(newest),
            test=result.get("test") or {},
            statistics=summarize_stored(row.scores),
            **{name: result.get(name) for name in ("best_step", "baseline", "parameters")},
            seconds=result.get("seconds") or None,
            error=row.error
            or (WITHOUT_VALUE if row.state in RANKED and row.value is None else None),
            reopened_for=None if row.earlier is None else row.earlier["reason"],
            usage=UsageNow.made_of(row),
        )

    def trial(self, record: TrialRecord) -> TrialNow:
        """Return a trial in full."""
        return TrialNow.made_of(
            self.summary(record),
            config=record.trial.config,
            result=record.trial.result,
            reports=record.reports,
            attempts=[AttemptNow.made_of(each, **read_place(each)) for each in record.attempts],
        )

    def run(self, run_id: str | None, project: str | None) -> str | None:
        """Return the address of a run on MLflow's pages, None if there is none."""
        if run_id is None or self._mlflow is None:
            return None
        place = f"runs/{run_id}" if project is None else f"experiments/{project}/runs/{run_id}"
        return f"{self._mlflow}/#/{place}?{TRAINING}"

    def chart(self, row: ExperimentRow) -> str | None:
        """Return the address of MLflow's chart of an experiment's trials, None if there is none.

        Its state is a tag of MLflow's experiment, which the driver wrote.
        """
        if row.run_id is None or row.run_project is None or self._mlflow is None:
            return self.run(row.run_id, row.run_project)
        view = f"compareRunsMode=CHART&viewStateShareKey={row.id}"
        return f"{self._mlflow}/#/experiments/{row.run_project}/runs?{TRAINING}&{view}"


def read_place(attempt: AttemptRow | None) -> dict[str, object]:
    """Return the fields of the `Place` where an attempt trains; None: not known."""
    unknown = dict.fromkeys(each.name for each in fields(Place))
    return unknown if attempt is None else unknown | attempt.place


def _name_as_at_the_end(reported: Metrics) -> Metrics:
    """Return what a report says under the names that a result has; `objective` is the best."""
    return {name.removeprefix("valid/"): value for name, value in reported.items()}


def _tell_unsent(message: JobRow) -> Notice:
    """Return what a person should know of a message that was not delivered.

    Of its address only the host is told: what follows it is a secret of many receivers.
    """
    host = urlsplit(message.request["url"]).hostname
    error = (message.error or "").strip().rpartition("\n")[2]  # a bug's is a whole traceback
    yet, following = " yet", ""  # its time may have passed, where no service sends messages now
    if message.due_at is None:
        yet, following = "", "; no more tries"
    elif message.due_at > time.time():
        at = datetime.fromtimestamp(message.due_at, UTC)
        following = f"; next try at {at:%H:%M} UTC on {at.day} {at:%B}"
    words = f"{host} was not told{yet} that the experiment is over: {error}{following}"
    return Notice("webhook", words)

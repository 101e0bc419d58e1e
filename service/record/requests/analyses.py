"""The requested analyses: jobs of the record, whose results are files in the home folder.

Runs in the service's process. A folder below `analyses` in the home folder is named by the digest
of the request, since an analysis is a pure function of its request. It holds the files that the
analysis writes.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic.main import IncEx

from eigensweep.analyses import ANALYSES
from eigensweep.analyses.base import ExperimentSubject, TrialSubject
from eigensweep.analyses.messages import FILES, RESULT, Outcome
from eigensweep.protocol.states import OPEN_ANALYSES
from eigensweep.service.record.errors import ConflictError, NotFoundError
from eigensweep.service.record.jobs import PATIENCE, AskedJob, Jobs
from eigensweep.service.record.sql.tables import JobKind
from eigensweep.store.places.durable_files import make_folder

AnalysisState = Literal["queued", "running", "finished", "failed", "cancelled"]

OVER: Final = frozenset(get_args(AnalysisState)) - OPEN_ANALYSES

OptionsJson = dict[str, JsonValue]
"""The options of an analysis as JSON; its class declares them."""
RUNS: Final[Mapping[str, IncEx | bool]] = {"run_id": True, "trials": {"__all__": {"run_id"}}}
"""The MLflow runs of a subject."""


class AnalysisSpec(BaseModel):
    """A complete request: options with defaults filled in, and the subject as it was found."""

    model_config = ConfigDict(frozen=True)

    name: str
    options: OptionsJson
    trial: TrialSubject | None = None
    experiment: ExperimentSubject | None = None

    @property
    def id(self) -> str:
        """The digest of the request, 16 hex digits. The subject's MLflow run is no part of it."""
        version = {"result_version": ANALYSES[self.name].result_version}
        content = self.model_dump(mode="json", exclude={"trial": RUNS, "experiment": RUNS})
        text = json.dumps(version | content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class AnalysisRecord(AskedJob):
    """An analysis: the request, and its state."""

    kind: ClassVar[JobKind] = "analysis"
    open: ClassVar[Collection[str]] = OPEN_ANALYSES
    outcomes: ClassVar[Collection[str]] = ("mlflow_run", "mlflow_problem")
    name: str
    options: OptionsJson
    experiment: str | None
    trial: int | None
    subject: dict[str, object] = field(default_factory=dict, repr=False)
    """The trial or the experiment as it was found, under its key in the request."""
    state: AnalysisState
    mlflow_run: str | None = None
    mlflow_problem: str | None = None


@dataclass
class Analyses:
    """The analyses of a record, and the folder of their files."""

    jobs: Jobs
    folder: Path
    has_mlflow: bool = False
    """Whether finished analyses are sent to MLflow."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, spec: AnalysisSpec) -> tuple[AnalysisRecord, bool]:
        """Queue an analysis; return it, and whether it was queued.

        The same request gives the same analysis in its present state. It is queued again if it
        failed or was cancelled, if MLflow has not received it, or if its files were removed.

        Raises:
            StorageError: if its folder cannot be made.
        """
        with self._lock:
            earlier = AnalysisRecord.find(self.jobs, spec.id)
            if earlier is not None and (
                earlier.state in OPEN_ANALYSES or self._is_complete(earlier)
            ):
                return earlier, False
            make_folder(self.folder / spec.id)
            subject = spec.trial or spec.experiment
            record = AnalysisRecord(
                id=spec.id,
                name=spec.name,
                options=spec.options,
                experiment=None if subject is None else subject.experiment,
                trial=None if spec.trial is None else spec.trial.number,
                state="queued",
                created_at=time.time() if earlier is None else earlier.created_at,
                subject=spec.model_dump(mode="json", include={"trial", "experiment"}),
            )
            return self._put(record), True

    def _is_complete(self, record: AnalysisRecord) -> bool:
        is_delivered = record.mlflow_problem is None or not self.has_mlflow
        has_files = (self.folder / record.id / RESULT).is_file()
        return record.state == "finished" and is_delivered and has_files

    def get(self, id: str) -> AnalysisRecord:
        """Return one analysis; raise NotFoundError if there is none of this id."""
        if (found := AnalysisRecord.find(self.jobs, id)) is None:
            raise NotFoundError(f"there is no analysis '{id}'")
        return found

    def list(self, matches: Callable[[AnalysisRecord], bool]) -> Sequence[AnalysisRecord]:
        """Return the analyses that match, the newest first, without their subjects."""
        found = self.jobs.list_parts("analysis", ("name", "options", "experiment", "trial"))
        return list(filter(matches, map(AnalysisRecord.of, found)))

    def file(self, id: str, name: str) -> Path:
        """Return the path of one of `FILES` of a finished analysis.

        Raises:
            NotFoundError: if there is no such analysis or file, or not yet.
        """
        record = self.get(id)
        if name not in FILES:
            raise NotFoundError(f"an analysis has no file '{name}'; it has {', '.join(FILES)}")
        if record.state != "finished":
            raise NotFoundError(
                f"analysis '{record.id}' is {record.state}: it has no files"
                + (" yet" if record.state in OPEN_ANALYSES else "")
            )
        path = self.folder / record.id / name
        if not path.is_file():
            raise NotFoundError(
                f"the files of analysis '{record.id}' were removed; post its request again"
            )
        return path

    def cancel(self, id: str) -> AnalysisRecord:
        """Cancel an analysis; the process that carries it out ends within seconds.

        Raises:
            NotFoundError: if there is none of this id.
            ConflictError: if it is over.
        """
        now = replace(self.get(id), state="cancelled", finished_at=time.time())
        found = self._put(now, unless=OVER)
        if found.state != "cancelled":
            raise ConflictError(f"analysis {id} is over: it has {found.state}")
        return found

    def begin(self, record: AnalysisRecord) -> None:
        """Record that an analysis is running, unless it was cancelled."""
        self._put(replace(record, state="running", started_at=time.time()), unless=OVER)

    def finish(self, id: str, outcome: Outcome) -> AnalysisRecord:
        """Record the outcome of a running analysis, unless it was cancelled; return it as it is."""
        ended = replace(
            self.get(id),
            state="finished" if outcome.error is None else "failed",
            finished_at=time.time(),
            error=outcome.error,
            mlflow_run=outcome.mlflow_run,
            mlflow_problem=outcome.mlflow_problem,
        )
        return self._put(ended, PATIENCE, unless=OVER)

    def _put(
        self,
        record: AnalysisRecord,
        patience: float = 0.0,
        unless: Collection[str] = (),
    ) -> AnalysisRecord:
        """Record an analysis, unless it is in one of these states; return it as it is."""
        job = record.to_job()
        return AnalysisRecord.of(self.jobs.put(job, lambda now: now.state in unless, patience))

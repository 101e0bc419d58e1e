"""The analyses that were asked for, each in a folder of its own.

Runs in the service's process. A folder below `analyses` in the home folder is named by the digest
of the request, since an analysis is a pure function of its request. It holds `request.json` (what
was asked for), `state.json` (replaced whole), and the files that the analysis writes. The folders
are the queue and the only memory; to forget an analysis, delete its folder.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from pydantic import JsonValue

from eigensweep.service.record.errors import AnalysisNotFoundError
from eigensweep.workers.analyses import ANALYSES
from eigensweep.workers.analyses.base import ExperimentSubject, TrialSubject
from eigensweep.workers.analyses.messages import FILES, RESULT, Outcome
from eigensweep.workers.shared.durable_files import storage_error, write_whole
from eigensweep.workers.shared.messages import Json
from eigensweep.workers.shared.states import OPEN_ANALYSES

AnalysisState = Literal["queued", "running", "finished", "failed"]

OptionsJson = dict[str, JsonValue]
"""The options of an analysis as JSON; which there are is declared by its class."""


@dataclass(frozen=True)
class AnalysisSpec:
    """A whole request: the options with defaults filled in, and the subject as it was found."""

    name: str
    options: OptionsJson
    trial: TrialSubject | None = None
    experiment: ExperimentSubject | None = None

    @property
    def id(self) -> str:
        """The digest of the request, 16 hex digits. The subject's MLflow run is no part of it."""
        content = {"result_version": ANALYSES[self.name].result_version, **self.to_dict()}
        for subject in (content["trial"], content["experiment"]):
            for each in (subject, *subject.get("trials", ())) if subject else ():
                del each["run_id"]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_dict(self) -> Json:
        """Return the content of `request.json`."""
        subjects = {"trial": self.trial, "experiment": self.experiment}
        return {
            "name": self.name,
            "options": self.options,
            **{kind: s.model_dump(mode="json") if s else None for kind, s in subjects.items()},
        }


@dataclass(frozen=True)
class AnalysisRecord:
    """An analysis: what was asked for, and its state. Times are seconds since 1970 (UTC)."""

    id: str
    name: str
    options: OptionsJson
    experiment: str | None
    trial: int | None
    state: AnalysisState
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    mlflow_run: str | None = None
    mlflow_problem: str | None = None


@dataclass
class Analyses:
    """The analyses in one folder."""

    folder: Path
    has_mlflow: bool = False
    """Whether finished analyses are sent to MLflow."""
    added: threading.Event = field(default_factory=threading.Event)
    """Set whenever an analysis joins the queue."""
    _records: dict[str, AnalysisRecord] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        for path in self.folder.glob("*/state.json"):
            with suppress(OSError, ValueError, TypeError):
                found = AnalysisRecord(**json.loads(path.read_bytes()))
                if found.state == "running":  # the service that ran it is gone
                    found = replace(found, state="queued", started_at=None)
                self._records[found.id] = found

    def add(self, spec: AnalysisSpec) -> tuple[AnalysisRecord, bool]:
        """Queue an analysis; return it, and whether it was queued.

        The same request gives the same analysis in its present state. It is queued again if it
        failed, if MLflow has not received it, or if its files were removed.

        Raises:
            StorageError: if it cannot be written to the folder.
        """
        with self._lock:
            id = spec.id
            earlier = self._records.get(id)
            if earlier is not None and (
                earlier.state in OPEN_ANALYSES or self._is_complete(earlier)
            ):
                return earlier, False
            subject = spec.trial or spec.experiment
            record = AnalysisRecord(
                id=id,
                name=spec.name,
                options=spec.options,
                experiment=None if subject is None else subject.experiment,
                trial=None if spec.trial is None else spec.trial.number,
                state="queued",
                created_at=time.time() if earlier is None else earlier.created_at,
            )
            try:
                (self.folder / id).mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error("make", self.folder / id, error) from error
            write_whole(self.folder / id / "request.json", json.dumps(spec.to_dict()).encode())
            self._write(record)
        self.added.set()
        return record, True

    def _is_complete(self, record: AnalysisRecord) -> bool:
        is_delivered = record.mlflow_problem is None or not self.has_mlflow
        has_files = (self.folder / record.id / RESULT).is_file()
        return record.state == "finished" and is_delivered and has_files

    def get(self, id: str) -> AnalysisRecord:
        """Return one analysis.

        Raises:
            AnalysisNotFoundError: if there is none of this id.
        """
        found = self._records.get(id)
        if found is None:
            raise AnalysisNotFoundError(f"there is no analysis '{id}'")
        return found

    def list(self, matches: Callable[[AnalysisRecord], bool]) -> Sequence[AnalysisRecord]:
        """Return those that match, the newest first."""
        found = filter(matches, list(self._records.values()))
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def file(self, id: str, name: str) -> Path:
        """Return the path of one of `FILES` of a finished analysis.

        Raises:
            AnalysisNotFoundError: if there is no such analysis or file, or not yet.
        """
        record = self.get(id)
        if name not in FILES:
            raise AnalysisNotFoundError(
                f"an analysis has no file '{name}'; it has {', '.join(FILES)}"
            )
        if record.state != "finished":
            raise AnalysisNotFoundError(
                f"analysis '{record.id}' is {record.state}: it has no files"
                + (" yet" if record.state != "failed" else "")
            )
        path = self.folder / record.id / name
        if not path.is_file():
            raise AnalysisNotFoundError(
                f"the files of analysis '{record.id}' were removed; post its request again"
            )
        return path

    def take_oldest(self) -> AnalysisRecord | None:
        """Mark the oldest queued analysis as running and return it; None if none is queued.

        Analyses whose folder was removed are forgotten.

        Raises:
            StorageError: if the state cannot be written; the analysis stays queued.
        """
        with self._lock:
            queued = [each for each in self._records.values() if each.state == "queued"]
            for oldest in sorted(queued, key=lambda each: (each.created_at, each.id)):
                if (self.folder / oldest.id).is_dir():
                    running = replace(oldest, state="running", started_at=time.time())
                    self._write(running)
                    return running
                del self._records[oldest.id]
        return None

    def finish(self, running: AnalysisRecord, outcome: Outcome) -> AnalysisRecord:
        """Record the outcome of a running analysis; return its new state.

        Raises:
            StorageError: if the state cannot be written; this service knows it nevertheless.
        """
        ended = replace(
            running,
            state="finished" if outcome.error is None else "failed",
            finished_at=time.time(),
            error=outcome.error,
            mlflow_run=outcome.mlflow_run,
            mlflow_problem=outcome.mlflow_problem,
        )
        with self._lock:
            self._records[ended.id] = ended
            self._write(ended)
        return ended

    def _write(self, record: AnalysisRecord) -> None:
        content = json.dumps(asdict(record)).encode()
        write_whole(self.folder / record.id / "state.json", content)
        self._records[record.id] = record

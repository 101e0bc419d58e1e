"""Analyses that were asked for: one folder each, worked off one at a time by child processes.

A folder below `home/analyses` is named by the digest of what was asked, since an analysis is a
pure function of its request: `request.json` (what was asked), `state.json` (replaced whole), and
what the child leaves. The folders are the queue and the only memory; deleting one forgets it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

from eigensweep.workers.analyses import ANALYSES
from eigensweep.workers.analyses.base import ExperimentSubject, TrialSubject
from eigensweep.workers.analyses.messages import (
    FILES,
    OUTCOME,
    RESULT,
    AnalysisOrder,
    Outcome,
)
from eigensweep.workers.shared.durable_files import StorageError, storage_error, write_whole
from eigensweep.workers.shared.states import OPEN_ANALYSES

logger = logging.getLogger(__name__)

LONGEST_SECONDS: Final = 2 * 3600.0
"""An analysis that takes longer is ended, and has failed."""
LOG_LINES: Final = 20
PAUSE_SECONDS: Final = 10.0

State = Literal["queued", "running", "finished", "failed"]


class AnalysisNotFoundError(LookupError):
    """No analysis has this id, or it has no such file yet."""


@dataclass(frozen=True)
class Requested:
    """What was asked for, all of it: equal requests have equal answers."""

    name: str
    options: dict[str, Any]
    """Every option, defaults filled in."""
    trial: TrialSubject | None = None
    experiment: ExperimentSubject | None = None

    @property
    def id(self) -> str:
        """The digest of the request, 16 hex digits; where MLflow keeps the subject is no part."""
        content = {"result_version": ANALYSES[self.name].result_version, **self.content()}
        for subject in (content["trial"], content["experiment"]):
            for each in (subject, *subject.get("trials", ())) if subject else ():
                del each["run_id"]
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def content(self) -> dict[str, Any]:
        """Return the request as JSON holds it."""
        subjects = {"trial": self.trial, "experiment": self.experiment}
        return {
            "name": self.name,
            "options": self.options,
            **{kind: s.model_dump(mode="json") if s else None for kind, s in subjects.items()},
        }


@dataclass(frozen=True)
class Standing:
    """How far an analysis is."""

    id: str
    name: str
    options: dict[str, Any]
    experiment: str | None
    trial: int | None
    state: State
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    error: str | None = None
    mlflow_run: str | None = None
    mlflow_problem: str | None = None


@dataclass
class Analyses:
    """The analyses in one folder. `start` works them off in a thread; tests call `tick`."""

    folder: Path
    storage: str
    data_root: str | None = None
    mlflow_uri: str | None = None
    _standings: dict[str, Standing] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _child: subprocess.Popen[bytes] | None = None
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        for path in self.folder.glob("*/state.json"):
            with suppress(OSError, ValueError, TypeError):
                found = Standing(**json.loads(path.read_bytes()))
                if found.state == "running":  # the service that ran it is gone
                    found = replace(found, state="queued", started_at=None)
                self._standings[found.id] = found

    def add(self, requested: Requested) -> tuple[Standing, bool]:
        """Queue an analysis; return it, and whether anything is to be done.

        The same request comes back as it stands, unless it failed, MLflow has not got it, or its
        files were removed: then it is queued once more.

        Raises:
            StorageError: if it cannot be written down.
        """
        with self._lock:
            id = requested.id
            known = self._standings.get(id)
            if known is not None:
                is_delivered = known.mlflow_problem is None or self.mlflow_uri is None
                is_there = (self.folder / id / RESULT).is_file()
                settled = known.state == "finished" and is_delivered and is_there
                if settled or known.state in OPEN_ANALYSES:
                    return known, False
            subject = requested.trial or requested.experiment
            standing = Standing(
                id=id,
                name=requested.name,
                options=requested.options,
                experiment=None if subject is None else subject.experiment,
                trial=None if requested.trial is None else requested.trial.number,
                state="queued",
                created_at=time.time() if known is None else known.created_at,
            )
            self._make(self.folder / id)
            write_whole(self.folder / id / "request.json", json.dumps(requested.content()).encode())
            self._keep(standing)
        self._wake.set()
        return standing, True

    def get(self, id: str) -> Standing:
        """Return one analysis.

        Raises:
            AnalysisNotFoundError: if there is none of this id.
        """
        found = self._standings.get(id)
        if found is None:
            raise AnalysisNotFoundError(f"there is no analysis '{id}'")
        return found

    def list(self, wanted: Callable[[Standing], bool]) -> Sequence[Standing]:
        """Return those that are wanted, the newest first."""
        found = filter(wanted, list(self._standings.values()))
        return sorted(found, key=lambda each: (each.created_at, each.id), reverse=True)

    def file(self, id: str, name: str) -> Path:
        """Return where a finished analysis has one of `FILES`.

        Raises:
            AnalysisNotFoundError: if there is no such analysis or file, or not yet.
        """
        standing = self.get(id)
        if name not in FILES:
            raise AnalysisNotFoundError(f"an analysis has no file '{name}'; it has {_all(FILES)}")
        if standing.state != "finished":
            raise AnalysisNotFoundError(
                f"analysis '{standing.id}' is {standing.state}: it has no files"
                + (" yet" if standing.state != "failed" else "")
            )
        path = self.folder / standing.id / name
        if not path.is_file():
            raise AnalysisNotFoundError(
                f"the files of analysis '{standing.id}' were removed; ask for it once more"
            )
        return path

    def start(self) -> None:
        """Begin to work the queue off."""
        self._thread = threading.Thread(target=self._run, name="analyses", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the one that runs; the next service begins it again."""
        self._stopping.set()
        self._wake.set()
        child = self._child
        if child is not None:
            with suppress(ProcessLookupError):  # it may end at this moment
                child.kill()
        if self._thread is not None:
            self._thread.join(timeout)

    def tick(self) -> bool:
        """Carry out the oldest that waits; return whether there was one."""
        with self._lock:
            waiting = [each for each in self._standings.values() if each.state == "queued"]
            if not waiting or self._stopping.is_set():
                return False
            oldest = min(waiting, key=lambda each: (each.created_at, each.id))
            if not (self.folder / oldest.id).is_dir():  # its folder was removed
                del self._standings[oldest.id]
                return True
            running = replace(oldest, state="running", started_at=time.time())
            self._keep(running)
        try:
            outcome = self._outcome(running)
        except (OSError, ValueError) as error:  # a folder that was removed, no process to be had
            outcome = Outcome(error=f"{type(error).__name__}: {error}")
        if outcome is not None:
            ended = replace(
                running,
                state="finished" if outcome.error is None else "failed",
                finished_at=time.time(),
                **outcome.model_dump(),
            )
            with self._lock:
                self._standings[ended.id] = ended  # also where it cannot be written
                self._keep(ended)
            logger.info("analysis %s id=%s name=%s", ended.state, ended.id, ended.name)
        return True

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                if self.tick():
                    continue
            except StorageError:  # the queue outlives a disk that is full
                logger.exception("an analysis could not be noted, trying again")
                self._stopping.wait(PAUSE_SECONDS)
                continue
            self._wake.wait()
            self._wake.clear()

    def _outcome(self, running: Standing) -> Outcome | None:
        """Carry an analysis out and return how it went; None where this service ends first."""
        folder = self.folder / running.id
        (folder / OUTCOME).unlink(missing_ok=True)
        request = json.loads((folder / "request.json").read_bytes())
        place = {
            "storage": self.storage,
            "data_root": self.data_root,
            "mlflow_uri": self.mlflow_uri,
        }
        order = AnalysisOrder.model_validate({**request, **place, "id": running.id})
        problem = self._run_child(folder, order)
        if self._stopping.is_set():
            return None
        try:
            return Outcome.model_validate_json((folder / OUTCOME).read_bytes())
        except (OSError, ValueError):
            return Outcome(error=problem or "it left no outcome")

    def _run_child(self, folder: Path, order: AnalysisOrder) -> str | None:
        """Run a process to its end; return why it left nothing, if that is known."""
        threads = str(min(4, max(1, (os.cpu_count() or 1) // 2)))
        with (folder / "log").open("wb") as log:
            child = self._child = subprocess.Popen(
                [sys.executable, "-m", "eigensweep.workers.analyses", str(folder)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={"OMP_NUM_THREADS": threads, **os.environ},
                start_new_session=True,  # a group of its own, which Ctrl-C does not reach
            )
        try:
            child.communicate(order.model_dump_json().encode(), timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            return f"it took longer than {LONGEST_SECONDS / 3600:.0f} hours"
        if child.returncode == 0:
            return None
        lines = (folder / "log").read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([f"its process ended with status {child.returncode}", *lines])

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error("make", folder, error) from error

    def _keep(self, standing: Standing) -> None:
        content = json.dumps(asdict(standing)).encode()
        write_whole(self.folder / standing.id / "state.json", content)
        self._standings[standing.id] = standing


def _all(names: Sequence[str]) -> str:
    return ", ".join(names)

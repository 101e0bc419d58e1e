"""Runs on an MLflow server of ours, which takes many of them in one request."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Final

from eigensweep.workers.tracking.mlflow_runs import (
    ELSEWHERE,
    ERROR,
    LONGEST_NAME,
    LONGEST_PARAM,
    LONGEST_TAG,
    OUTCOME,
    AwayError,
    MlflowRefusedError,
    RunContent,
    Runs,
)
from eigensweep.workers.tracking.run_writes import PATH, RunWrite, is_kept_by_server, next_request

NAMES: Final = uuid.UUID("8ca1d0a4-5b0b-4a3f-9c63-1b5f8f0e2d57")
"""What the ids of runs are made under."""

MOST_DELETED: Final = 100
"""How often a run may be deleted and made again, at most."""


class BatchedRuns(Runs):
    """The runs of one experiment, written in batches: nothing is sent before `flush`.

    A run's id follows from experiment, trial and seed. So a request whose answer was lost, and one
    that arrives after its driver's death, write what the next one writes. A run with the tags of
    the experiment and another id is none of its runs: anybody may have written them.
    """

    at_once = 1

    def __init__(self, uri: str, project: str, experiment: str) -> None:
        super().__init__(uri, project, experiment)
        self._waiting: dict[str, RunWrite] = {}

    def flush(self) -> dict[str, str]:
        """Send what is waiting; return the runs that MLflow refuses, with the reason.

        After an error, what was not taken still waits.
        """
        refused: dict[str, str] = {}
        while request := next_request(self._waiting.values()):
            refused |= self._write(request)
            for part in request:
                if part.run_id in refused or self._waiting[part.run_id].drop(part):
                    del self._waiting[part.run_id]
        return refused

    def begin_again(self, run_id: str) -> None:
        write = self._waiting.get(run_id)
        if write is None:
            super().begin_again(run_id)
            return
        write.status, write.end_time = "RUNNING", None
        for tag in (OUTCOME, ERROR):
            write.tags.pop(tag, None)
        self._over.discard(run_id)

    def send(self, run_id: str, content: RunContent) -> None:
        if content == RunContent():
            return
        write = self._write_of(run_id)
        write.params |= {k: str(v)[:LONGEST_PARAM] for k, v in content.params.items()}
        write.tags |= {k: v[:LONGEST_TAG] for k, v in content.tags.items()}
        write.points += [
            (name, value, point.timestamp_ms, point.step)
            for point in content.points
            for name, value in point.metrics.items()
        ]

    def end(self, run_id: str, status: str) -> None:
        write = self._write_of(run_id)
        write.status, write.end_time = status, int(time.time() * 1000)

    def keep_text(self, run_id: str, text: str, name: str) -> None:
        if not is_kept_by_server(self.artifacts()):
            self.refused[name] = ELSEWHERE
            return
        self._write_of(run_id).texts[name] = text

    def _make(self, key: tuple[int | None, int | None], tags: Mapping[str, str], name: str) -> str:
        run_id, now = self._name(key, self._deleted.get(key, 0)), int(time.time() * 1000)
        self._waiting[run_id] = RunWrite(run_id, name[:LONGEST_NAME], now, dict(tags))
        self._know(key, run_id, now)
        return run_id

    def _name(self, key: tuple[int | None, int | None], deleted: int) -> str:
        """Return the id of a run, of which people have deleted so many before."""
        number, seed = key
        return uuid.uuid5(NAMES, f"{self._experiment}/{number}/{seed}/{deleted}").hex

    def _is_own(self, key: tuple[int | None, int | None], run_id: str) -> bool:
        return any(run_id == self._name(key, deleted) for deleted in range(MOST_DELETED))

    def _write_of(self, run_id: str) -> RunWrite:
        if run_id not in self._waiting:
            self._waiting[run_id] = RunWrite(run_id, "", self._start_times[run_id])
        return self._waiting[run_id]

    def _write(self, request: list[RunWrite]) -> dict[str, str]:
        content = {"project": self.project_id, "runs": [each.to_dict() for each in request]}
        answer = self._post(PATH, content)
        if answer.status == 200:
            found: dict[str, str] = answer.content["refused"]
            return found
        words = f"status {answer.status}: {answer.content}"
        raise MlflowRefusedError(words) if answer.status in (400, 404) else AwayError(words)


def open_runs(uri: str, project: str, experiment: str) -> Runs:
    """Return the runs of an experiment, in batches if the server takes them.

    Raises:
        AwayError: if MLflow does not answer.
    """
    runs = Runs(uri, project, experiment)
    return BatchedRuns(uri, project, experiment) if runs.is_ours() else runs

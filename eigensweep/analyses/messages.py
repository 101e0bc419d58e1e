"""What the service sends to an analysis's process, and what that process leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import JsonValue

from eigensweep.analyses.base import ExperimentSubject, Subject, TrialSubject
from eigensweep.search_spaces.trial import Strict
from eigensweep.store.places.durable_files import StorageError, write_whole

RESULT, TABLE, PNG, SVG = "result.json", "table.csv", "figure.png", "figure.svg"
FILES: Final = (RESULT, TABLE, PNG, SVG)
"""The files of an analysis, in its folder; `result.json` is written last."""
OUTCOME: Final = "outcome.json"
"""A `ChildOutcome` as JSON, beside them; of a report, too."""
NOT_WRITTEN: Final = 75
"""The exit status of a child process whose outcome the disk does not take: `EX_TEMPFAIL`."""


class AnalysisOrder(Strict):
    """One analysis to make, sent as JSON on the standard input of its process."""

    id: str
    """The digest of the request."""
    name: str
    """A name in `ANALYSES`."""
    options: dict[str, JsonValue]
    """Every option, as JSON; the analysis reads them with its own class `Options`."""
    trial: TrialSubject | None = None
    """Its subject, if the analysis is of a trial."""
    experiment: ExperimentSubject | None = None
    """Its subject, if the analysis is of an experiment."""
    storage: str
    """Folder of the store."""
    data_root: str | None = None
    """Folder of the corpora; None if there is none."""
    mlflow_uri: str | None = None
    """Where MLflow's server is; None if this service has none."""

    @property
    def subject(self) -> Subject:
        """The trial, or the experiment, or None for an analysis of matrices."""
        return self.trial or self.experiment


class ChildOutcome(Strict):
    """How the work of a child process ended."""

    error: str | None = None
    """None if it succeeded; else why it cannot be done, or the traceback of a bug."""
    is_temporary: bool = False
    """Whether the same work may succeed later: the store or the disk did not work."""


class Outcome(ChildOutcome):
    """How an analysis ended."""

    mlflow_run: str | None = None
    """The run in MLflow that has the files as artifacts."""
    mlflow_problem: str | None = None
    """Why MLflow does not have the files; None if it does."""


def leave_outcome(folder: Path, outcome: ChildOutcome) -> None:
    """Write how a child process ended; where the disk does not take it, exit with `NOT_WRITTEN`."""
    try:
        write_whole(folder / OUTCOME, outcome.model_dump_json().encode())
    except StorageError as error:
        raise SystemExit(NOT_WRITTEN) from error

"""What the service sends to an analysis's process, and what that process leaves behind."""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

from eigensweep.analyses.base import ExperimentSubject, Subject, TrialSubject
from eigensweep.search_spaces.trial import Strict

RESULT, TABLE, PNG, SVG = "result.json", "table.csv", "figure.png", "figure.svg"
FILES: Final = (RESULT, TABLE, PNG, SVG)
"""The files of an analysis, in its folder; `result.json` is written last."""
OUTCOME: Final = "outcome.json"
"""An `Outcome` as JSON, beside them."""


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

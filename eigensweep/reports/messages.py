"""What the service sends to a report's process, and what that process leaves behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Final, Literal, Self

from pydantic import Field, JsonValue, model_validator

from eigensweep.analyses.messages import ChildOutcome
from eigensweep.common.direction import Better
from eigensweep.results.seeds import split_seeds, summarise
from eigensweep.results.trial_result import Result
from eigensweep.search_spaces.parameters import Scalar
from eigensweep.search_spaces.shipped.reproductions import Budget
from eigensweep.search_spaces.spec import ExperimentSpec
from eigensweep.search_spaces.trial import Strict, TrialConfig

JSON, MARKDOWN, HTML, FIGURE = "report.json", "report.md", "report.html", "figure.svg"
RESULTS: Final = "results.json"
"""A `Results` as JSON: all that the report is made of."""
FILES: Final = (MARKDOWN, HTML, FIGURE, RESULTS, JSON)
"""The files of a report, in its folder; `report.json` is written last."""
CURVES: Final = "curves.svg"
"""The picture of the curves; `figure.svg` is the same where no analysis has a picture."""

MOST_SEEDS: Final = 40
"""Seeds that a reproduction ends with at most, where no other number is asked for."""


@dataclass(frozen=True)
class Until:
    """That seeds are added until the primary claim is decided, and how many were so far."""

    core_hours: float | None = None
    """Time that added seeds may take, by the cores of each; None: `most` is the only limit."""
    most: int = MOST_SEEDS
    """Largest number of seeds."""
    looks: tuple[int, ...] = (0,)
    """The seeds that had been added at each look, the present one last."""

    @property
    def added(self) -> int:
        """The seeds that were added so far."""
        return self.looks[-1]

    def after(self, added: int) -> Until:
        """Return the same with one more look."""
        return replace(self, looks=(*self.looks, added))


class MeasuredTrial(Strict):
    """A trial as the record has it at the end."""

    number: int = Field(ge=0, lt=2**31)
    arm: str
    state: str
    params: dict[str, Scalar]
    config: dict[str, JsonValue] | None
    """The resolved configuration; None if the point is invalid."""
    place: str
    """Folder of its replicates in the store; for a reused trial, the folder of its source."""
    result: dict[str, JsonValue] | None
    """The trainer's `Result`; None if it never trained."""
    error: str | None = None
    config_hash: str | None = None
    """Names its configuration and the code that trained it: see `TrialConfig.content_hash`."""

    @property
    def is_ended(self) -> bool:
        """Whether its result is final: its whole budget was trained, or it diverged."""
        return self.state in ("completed", "reused", "diverged") and self.result is not None


class MeasuredExperiment(Strict):
    """An experiment of a reproduction at its end."""

    label: str
    id: str | None
    """None if it was never posted."""
    sides: str | None = None
    """A parameter of the search whose values are compared in the place of arms."""
    chosen: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """By arm, values of searched parameters that stand for it."""
    state: str
    problem: str | None = None
    """Why there is no result of it, or not the whole one."""
    spec: dict[str, JsonValue]
    metric: str
    unit: str
    better: Better
    baseline: float | None
    trials: tuple[MeasuredTrial, ...] = ()
    run_id: str | None = None
    """Its run in MLflow; None while there is none."""
    started_at: float | None = None
    finished_at: float | None = None


class AnalysisMade(Strict):
    """An analysis of a reproduction, as its report names it."""

    label: str
    repeat: int
    """Its number among the repetitions, from 0."""
    id: str | None
    problem: str | None = None
    """Why there is no result of it."""


class MadeAnalysis(AnalysisMade):
    """An analysis of a reproduction at its end."""

    folder: str | None = None
    """Where its files are; None if it has none."""
    content: dict[str, JsonValue] | None = None
    """Its numbers, where they were taken up from a file of results and it has no folder."""


class KeptAnalysis(AnalysisMade):
    """An analysis of a reproduction with its numbers."""

    content: dict[str, JsonValue] | None = None
    """What its `result.json` holds; None if it has no result."""


Block = dict[str, list[int | float]]
"""Some points of a curve: their `step`, and by metric the values there, one for each step."""


class KeptTrial(MeasuredTrial):
    """A trial with the curve of each seed."""

    curves: dict[int, list[Block]] = Field(default_factory=dict)
    """By seed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse a trial that was damaged or changed by hand: others would reuse its seeds."""
        for block in chain.from_iterable(self.curves.values()):
            if not block.get("step") or len({*map(len, block.values())}) > 1:
                raise ValueError(f"a curve of trial {self.number} has not one value for each step")
        if self.is_ended:
            try:
                config = TrialConfig.from_dict(dict(self.config or {}))
                result = summarise(split_seeds(Result.from_dict(self.result or {})))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                raise ValueError(f"trial {self.number} cannot be read: {error!r}") from error
            seeds = [each.seed for each in result.by_replicate]
            wanted = [*config.seeds][: len(seeds)]
            if seeds != wanted or not self.curves.keys() <= {*seeds}:
                raise ValueError(
                    f"trial {self.number} has results of the seeds {seeds} and curves of "
                    f"{[*self.curves]}, and should have those of {wanted}"
                )
        return self


class KeptExperiment(MeasuredExperiment):
    """An experiment of a reproduction with the curves of its trials."""

    trials: tuple[KeptTrial, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            ExperimentSpec.from_stored(self.spec)
        except (AttributeError, LookupError, TypeError) as error:
            raise ValueError(f"the spec of {self.label} cannot be read: {error!r}") from error
        if len({each.number for each in self.trials}) < len(self.trials):
            raise ValueError(f"two trials of {self.label} have the same number")
        return self


class Results(Strict):
    """All that a report is made of. Another machine can take it up."""

    format: Literal[1] = 1
    name: str
    """The suite's name."""
    budget: Budget
    versions: str
    revision: str
    processor: str
    note: str | None = None
    """What else ran on the machine, in words; None: nobody has said so."""
    made_at: datetime
    experiments: list[KeptExperiment]
    analyses: list[KeptAnalysis]
    until: Until | None = None
    """None: its number of seeds was fixed before."""

    @property
    def added(self) -> int:
        """Seeds that were added until the primary claim was decided."""
        return 0 if self.until is None else self.until.added

    @property
    def origin(self) -> str:
        """Where its trials were trained, in words."""
        return f"{self.processor}; revision {self.revision[:12]}; {self.versions}"


class ReportOrder(Strict):
    """One report to make, sent as JSON on the standard input of its process."""

    id: str
    name: str
    """The suite's name."""
    budget: Budget
    experiments: list[MeasuredExperiment]
    analyses: list[MadeAnalysis]
    until: Until | None = None
    storage: str
    """Folder of the store."""
    mlflow_uri: str | None = None
    """Where MLflow's server is; None if this service has none."""


class ReportOutcome(ChildOutcome):
    """How the making of a report ended."""

    verdict: str | None = None
    """The verdict on the whole table or figure, in a word."""
    words: str | None = None
    """The verdict in a sentence."""
    mlflow_problem: str | None = None
    """Why MLflow does not have the files; None if it does."""
    wanted: int | None = None
    """How many added seeds the next look needs; None if this was the last one."""

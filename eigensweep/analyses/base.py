"""What every analysis has: its subject, its options, its numbers and its picture.

The service checks requests with these classes, and `eigensweep.analyses.__main__` runs an
analysis in a process of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from pydantic import BeforeValidator, Field, JsonValue

from eigensweep.common.direction import Better
from eigensweep.search_spaces.trial import Strict, TrialConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OneOrMore = BeforeValidator(lambda given: given if isinstance(given, list | tuple) else (given,))
"""Accepts a single value in place of a list with one entry."""

Kind = Literal["trial", "experiment", "matrices"]
"""The subject of an analysis: a trial's weights, an experiment's curves, or matrices of its own."""

Cell = str | int | float | None
"""An entry of a table."""


class TrialSubject(Strict):
    """A finished trial, and where the store keeps it."""

    experiment: str
    number: int
    arm: str
    state: str
    """How the trial ended: `completed`, `pruned`, `diverged`, `reused`, ..."""
    config: dict[str, JsonValue]
    """The resolved `TrialConfig` as JSON; `trial_config` reads it."""
    place: str
    """Folder of its replicates in the store; for a reused trial, the folder of its source."""
    value: float | None = None
    """Its best value of the experiment's metric; None if it never had a finite one."""
    step: int = 0
    """Optimizer steps that it was trained for."""
    run_id: str | None = None
    """Its run in MLflow; None while there is none."""

    @property
    def trial_config(self) -> TrialConfig:
        """The configuration, read from `config`."""
        return TrialConfig.from_dict(self.config)

    def store_key(self, seed: int) -> str:
        """Return the store's key of the replicate with this seed."""
        return f"{self.place}/{seed}"


class ExperimentSubject(Strict):
    """A finished experiment, and those of its trials that were trained."""

    experiment: str
    name: str
    metric: str
    """The metric that ranks its trials."""
    unit: str
    """The metric's unit."""
    better: Better
    baseline: float | None
    """The memoryless baseline of the metric; None if it is not known."""
    trials: list[TrialSubject]
    run_id: str | None = None
    """Its run in MLflow; None while there is none."""


Subject = TrialSubject | ExperimentSubject | None
"""None for an analysis of matrices, which needs nothing that was trained."""


class Options(Strict):
    """The options of an analysis."""


class TrialOptions(Options):
    """The options that every analysis of a trial's weights has."""

    weights: Literal["initial", "best", "last"] = Field(
        "last",
        description="Which weights: before training, at the best evaluation, or at the end",
    )
    replicate: int = Field(0, ge=0, le=999, description="Number of the replicate, from 0")


class Content(Strict):
    """The numbers of an analysis, as `result.json` holds them."""


OptionsT = TypeVar("OptionsT", bound=Options)
SubjectT = TypeVar("SubjectT", bound=Subject)
ContentT = TypeVar("ContentT", bound=Content)


@dataclass(frozen=True)
class Findings(Generic[ContentT]):
    """The result of an analysis: its numbers, and the same numbers as a table."""

    content: ContentT
    columns: Sequence[str]
    rows: Iterable[Sequence[Cell]]
    """One cell for each column."""


@dataclass(frozen=True)
class Folders:
    """Where an analysis finds checkpoints, curves and corpora."""

    storage: str
    """Folder or URL of the store."""
    data_root: Path | None = None
    """Folder of the corpora; None if there is none."""


class AnalysisMethod(ABC, Generic[OptionsT, SubjectT, ContentT]):
    """A pure function of options and a subject (its weights or its curves).

    The first line of a subclass's docstring is shown in the list of analyses.
    """

    of: ClassVar[Kind]
    Options: ClassVar[type[Options]]
    result_version: ClassVar[int] = 1
    """Raise it when the same request gives other numbers: older results are then not reused."""

    def check(self, options: OptionsT, subject: SubjectT) -> None:
        """Raise ValueError if the analysis cannot be made of this subject. Reads no weights."""

    @abstractmethod
    def run(self, options: OptionsT, subject: SubjectT, folders: Folders) -> Findings[ContentT]:
        """Return the numbers.

        Raises:
            ValueError: if the subject lacks what the analysis needs; the message is for the person
                who asked for it.
        """

    @abstractmethod
    def plot(self, content: ContentT) -> Figure:
        """Return the picture of the numbers."""


def six_digits(number: float) -> float:
    """Return a number with six significant digits: enough for a table, a third of the text.

    >>> six_digits(1 / 3)
    0.333333
    """
    return float(f"{number:.6g}")

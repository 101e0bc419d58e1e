"""The contract of an analysis: what it looks at, what may be set, its numbers and its picture."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field

from eigensweep.direction import Better
from eigensweep.search_spaces.trial import Strict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OneOrMore = BeforeValidator(lambda given: given if isinstance(given, list | tuple) else (given,))
"""Lets one value stand for a list of one."""

Kind = Literal["trial", "experiment", "matrices"]
"""What an analysis is of: a trial's weights, an experiment's curves, or matrices of its own."""


class TrialSubject(Strict):
    """A trial that is over, and where the store keeps it."""

    experiment: str
    number: int
    arm: str
    state: str
    config: dict[str, Any]
    place: str
    """Folder of its replicates in the store; a reused trial's is that of its source."""
    value: float | None = None
    step: int = 0
    run_id: str | None = None


class ExperimentSubject(Strict):
    """An experiment that is over, with those of its trials that trained."""

    experiment: str
    name: str
    metric: str
    unit: str
    better: Better
    baseline: float | None
    trials: list[TrialSubject]
    run_id: str | None = None


Subject = TrialSubject | ExperimentSubject | None


class Options(Strict):
    """What a request may set on an analysis."""


class TrialOptions(Options):
    """What may be set on every analysis of a trial."""

    weights: Literal["initial", "best", "last"] = Field(
        "last",
        description="The untrained weights, those of the best evaluation, or those at the end",
    )
    replicate: int = Field(0, ge=0, le=999, description="Which replicate, from 0")


@dataclass(frozen=True)
class Findings:
    """What came out: JSON, from which the picture is drawn, and the same as a table."""

    content: dict[str, Any]
    columns: Sequence[str]
    rows: Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Place:
    """Where an analysis finds what was trained."""

    storage: Path
    data_root: Path | None = None


class Analysis(ABC):
    """A pure function of a subject (its weights or curves) and options.

    The docstring's first line is what a list of analyses shows.
    """

    of: ClassVar[Kind]
    Options: ClassVar[type[Options]]
    result_version: ClassVar[int] = 1
    """Raised when the same request gives other numbers: what stands already is not given again."""

    def check(self, options: Any, subject: Any) -> None:  # noqa: B027 - most need no more
        """Raise ValueError if this subject has not what the analysis needs. Reads no weights."""

    @abstractmethod
    def run(self, options: Any, subject: Any, place: Place) -> Findings:
        """Return the numbers.

        Raises:
            ValueError: if the subject has not what is needed, in words for whoever asked.
        """

    @abstractmethod
    def plot(self, content: dict[str, Any]) -> Figure:
        """Return the picture of `Findings.content`, which may have come back from JSON."""


def rounded(number: float) -> float:
    """Return a number with six digits: what a table shows, and a third of the text.

    >>> rounded(1 / 3)
    0.333333
    """
    return float(f"{number:.6g}")

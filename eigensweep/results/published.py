"""The numbers that a paper prints beside those that were measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eigensweep.results.statistics import Summary, summarize

if TYPE_CHECKING:
    from eigensweep.search_spaces.sections import PublishedNumber
    from eigensweep.search_spaces.spec import ExperimentSpec


@dataclass(frozen=True)
class Measured:
    """What the best trial of an arm has come to."""

    metrics: Mapping[str, Summary]
    """Over its seeds, by the names that published numbers have."""
    parameters: int | None
    """Free parameters of its model; None: not known."""


@dataclass(frozen=True)
class Beside:
    """A number of a paper, and what was measured of it."""

    published: PublishedNumber
    measured: Summary | None
    reason: str | None
    """Why nothing stands beside it; None if something does."""

    @property
    def gap(self) -> float | None:
        """Measured minus published."""
        return find_gap(self.measured, self.published)

    @property
    def place(self) -> str | None:
        """Where it stands in the paper."""
        page = self.published.page
        words = self.published.place, f"page {page}" if page else None
        return ", ".join(filter(None, words)) or None


def find_gap(measured: Summary | None, published: PublishedNumber) -> float | None:
    """Return how much more was measured than a paper prints; None if nothing was."""
    return None if measured is None else measured.mean - published.value


def set_beside(
    spec: ExperimentSpec, baseline: float | None, best: Mapping[str, Measured | None]
) -> list[Beside]:
    """Return the numbers that a spec gives, each beside what the best trial of its arm measured.

    `best` has each arm that has trials, None while none of them is ranked.
    """
    differs, found = _find_differences(spec), []
    for published in spec.published:
        measured, reason = _measure(published, baseline, best)
        if differs and published.metric != "parameters":
            measured, reason = None, f"not comparable: {differs}"
        found.append(Beside(published, measured, reason))
    return found


def _find_differences(spec: ExperimentSpec) -> str:
    """Return in which settings an experiment is not the one that its paper's numbers tell of.

    Those are known for the numbers of our presets. Empty if none differs, or none is known.
    """
    from eigensweep.search_spaces.shipped.presets import find_preset  # it brings torch

    preset = find_preset(spec.published)
    if preset is None:
        return ""
    sides = [
        {"task": each.task.model_dump(), "training": {"steps": each.training.steps}}
        for each in (spec, preset)
    ]
    return ", ".join(
        f"{part}.{name} is {value} here and {sides[1][part].get(name)} there"
        for part, fields in sides[0].items()
        for name, value in fields.items()
        if value != sides[1][part].get(name)
    )


def _measure(
    published: PublishedNumber, baseline: float | None, best: Mapping[str, Measured | None]
) -> tuple[Summary | None, str | None]:
    """Return what was measured of a published number; or None, and why."""
    metric, arm = published.metric, published.arm
    if metric == "baseline":
        if baseline is None:
            return None, "the baseline of this experiment is not known"
        return summarize([baseline]), None
    if arm is None:
        return None, "no arm of this experiment measures it"
    if (trial := best.get(arm)) is None:
        return None, f"arm '{arm}' has no ranked trial yet"
    if published.step is not None:
        return None, f"a point of a curve, at step {published.step}"
    found = trial.metrics.get(metric)
    if metric == "parameters" and trial.parameters is not None:
        found = summarize([float(trial.parameters)])
    return found, None if found else f"the best trial of '{arm}' has no '{metric}'"

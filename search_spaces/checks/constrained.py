"""What the rules of `search.constraints` leave of a space, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterator

from eigensweep.search_spaces.config_fields import list_fields
from eigensweep.search_spaces.constraints import Constraint
from eigensweep.search_spaces.errors import (
    ConstraintError,
    InvalidPointError,
    SpecError,
    UnknownParameterError,
    did_you_mean,
    shorten,
)
from eigensweep.search_spaces.sections import SEARCHED
from eigensweep.search_spaces.spec import ExperimentSpec


def find_unknown_fields(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield the rules that read a field which no arm has."""
    known: dict[str, None] = {}
    for arm in spec.arms_:
        sections = arm.model, arm.optimizer, spec.task, spec.training
        for section, config in zip(SEARCHED, sections, strict=True):
            assert config is not None
            known |= {f"{section}.{field}": None for field in list_fields(config)}
    for index, text in enumerate(spec.search.constraints):
        for path in Constraint(text).paths:
            if path not in known:
                yield UnknownParameterError(
                    f"search.constraints.{index}",
                    f"no arm has a field '{shorten(path)}'{did_you_mean(path, known)}",
                    expected="fields of the spec, by dotted path",
                    got=shorten(path),
                    available=list(known),
                )


def find_empty_arms(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield the arms in which no point keeps the rules; all else in the spec is right."""
    if not spec.search.constraints:
        return
    space = spec.space()
    for arm in space.arms:
        tried, first = 0, None
        for point in spec.corners(space, arm):
            try:
                spec.trial(point)
                break
            except InvalidPointError as error:
                tried, first = tried + 1, first or error
        else:
            assert first is not None
            yield ConstraintError(
                "search.constraints",
                f"no point of arm '{arm}' keeps them, of {tried:,} that were tried; the first: "
                f"{first.message}",
                got=first.got,
            )


def count_kept(spec: ExperimentSpec) -> tuple[int, int]:
    """Return how many points were tried, all of a small space, and how many keep the rules."""
    points = list(spec.sample(spec.space()))
    return len(points), sum(map(spec.keeps, points))

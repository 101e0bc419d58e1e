"""Which points of `search.first` could not be tried, and why."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from eigensweep.search_spaces.errors import InvalidPointError, SpecError
from eigensweep.search_spaces.labels import say_count
from eigensweep.search_spaces.spec import ExperimentSpec


def find_first_errors(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield what is wrong with the points by themselves, and with their number.

    The space is right, as far as its conditions go.
    """
    space, first, most = spec.space(), spec.search.first, spec.trial_count()
    seen: dict[Hashable, int] = {}
    for index, named in enumerate(first):
        place = f"search.first.{index}"
        try:
            point = space.locate(named.arm, named.params)
        except SpecError as error:
            yield error.below(place)
            continue
        before = seen.setdefault((point.arm, *point.params.items()), index)
        if before != index:
            words = f"this is the same point as 'search.first.{before}'"
            yield SpecError(place, words, expected="each point once", got=point.params)
    if most is not None and len(first) > most:
        yield SpecError(
            "search.first",
            f"{say_count(len(first), 'point')} cannot be tried in {say_count(most, 'trial')}",
            expected=f"at most {say_count(most, 'point')}, or more trials",
            got=len(first),
        )


def find_invalid_first(spec: ExperimentSpec) -> Iterator[SpecError]:
    """Yield the points that break a rule about several fields; all else in the spec is right."""
    space = spec.space()
    for index, named in enumerate(spec.search.first):
        try:
            spec.trial(space.locate(named.arm, named.params))
        except InvalidPointError as error:
            yield type(error)(f"search.first.{index}", error.message, got=error.got)

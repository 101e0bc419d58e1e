"""Which parts of a spec are wrong already, so that what follows from that is not told as well.

A place is a dotted path into a spec, as in `SpecError.path`. An arm's `model`, `optimizer` and
`space` lie in the same sections as those that all arms share.
"""

from __future__ import annotations

from collections.abc import Iterable


class Places:
    """Places in a spec, looked up by section.

    >>> wrong = Places(["arms.1.model.depth", "search.space.optimizer.lr"])
    >>> wrong.touch("model"), wrong.touch("model", arm=0), wrong.touch("optimizer", arm=0)
    (True, False, True)
    >>> wrong.touch("space"), wrong.touch("search.method"), wrong.touch("training")
    (True, False, False)
    """

    def __init__(self, places: Iterable[str]) -> None:
        self._places = [_split(place) for place in places]

    def __bool__(self) -> bool:
        return bool(self._places)

    def touch(self, *sections: str, arm: int | None = None) -> bool:
        """Tell whether one lies in a section, or is the whole of it; of all arms, or of one."""
        return bool(self._places) and any(
            _lies_in(rest, section)
            for index, rest in self._places
            if arm is None or index in (None, arm)
            for section in sections
        )


def _split(place: str) -> tuple[int | None, str]:
    """Return the number of the arm that a place lies in, None for all arms, and the rest."""
    words = place.split(".")
    if words[0] == "arms" and len(words) > 1 and words[1].isdecimal():
        return int(words[1]), ".".join(words[2:])
    return None, place.removeprefix("search.") if words[:2] == ["search", "space"] else place


def _lies_in(place: str, section: str) -> bool:
    """Tell whether a place touches a section; an axis lies in the section of its field, too."""
    field = place.removeprefix("space.")
    whole = place in ("", "arms") or (place == "search" and section == "space")
    return (
        whole
        or any(each == section or each.startswith(f"{section}.") for each in (place, field))
        or section.startswith(f"{place}.")
    )

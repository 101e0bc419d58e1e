"""Several objectives of a trial, and the trials that no other one beats in all of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from eigensweep.results.trial_result import Result


def read_goals(names: Sequence[str], result: Result) -> list[float | None]:
    """Return a result's value of each goal, the objective first; None where it is unknown.

    `seconds` are of all replicates together; for a result that was reused, those of the first time.
    """
    parameters = None if result.parameters is None else float(result.parameters.free)
    costs = {"parameters": parameters, "seconds": result.seconds}
    others = [costs.get(name, result.valid.get(name)) for name in names[1:]]
    return [result.value, *others]


def find_front(points: Sequence[Sequence[float]]) -> list[int]:
    """Return the places of points that no other one beats, where lower is better throughout.

    They come in rising order of the first number. Equal points beat one another in nothing. A point
    has one to three numbers, so that one look at each, in order, is enough.

    >>> find_front([(2, 2), (1, 3), (3, 3), (2, 1), (1, 3)])
    [1, 4, 3]
    """
    front: list[int] = []
    seconds: list[float] = []  # of those met so far that no other one beats in the last two numbers
    thirds: list[float] = []  # theirs, which fall where the second ones rise
    for place in sorted(range(len(points)), key=lambda place: (*points[place], place)):
        _, second, third = (*points[place], 0.0, 0.0)[:3]
        end = bisect_right(seconds, second)
        if end and thirds[end - 1] <= third:
            if front and points[place] == points[front[-1]]:
                front.append(place)
            continue
        front.append(place)
        begin = bisect_left(seconds, second)
        while end < len(thirds) and thirds[end] >= third:
            end += 1
        seconds[begin:end], thirds[begin:end] = [second], [third]
    return front

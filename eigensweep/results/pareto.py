"""Several objectives of a trial, and the trials that no other one beats in all of them."""

from __future__ import annotations

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

    They come in rising order of the first number. Of equal points the first one counts.

    >>> find_front([(2, 2), (1, 3), (3, 3), (2, 1), (1, 3)])
    [1, 3]
    """
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (*points[place], place)):
        point = points[place]
        beaten = any(
            all(a <= b for a, b in zip(points[other], point, strict=True)) for other in front
        )
        if not beaten:
            front.append(place)
    return front

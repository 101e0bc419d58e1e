"""The Pareto front: which points no other one beats, also of very many."""

from __future__ import annotations

from math import inf
from random import Random

import pytest

from eigensweep.results.pareto import find_front

Points = list[list[float]]


def beats(other: list[float], point: list[float]) -> bool:
    return other != point and all(a <= b for a, b in zip(other, point, strict=True))


@pytest.mark.parametrize("numbers", [1, 2, 3])
def test_it_is_what_a_look_at_all_pairs_says_also_with_ties(numbers):
    rng = Random(numbers)
    for _ in range(300):
        values = [-1.0, 0.0, 0.5, 2.0, 3.0, inf]
        size = rng.randrange(12)
        points: Points = [[rng.choice(values) for _ in range(numbers)] for _ in range(size)]
        wanted = [
            place
            for place, point in enumerate(points)
            if not any(beats(other, point) for other in points)
        ]
        found = find_front(points)
        assert sorted(found) == wanted
        assert [points[place][0] for place in found] == sorted(points[p][0] for p in found)


def test_a_front_of_twenty_thousand_takes_no_look_at_each_pair():
    """To look at each pair takes minutes, and meanwhile the service would answer nobody else."""
    points = [(float(n), float(-n), float(n * 7919 % 20_000)) for n in range(20_000)]
    assert find_front(points) == list(range(20_000))

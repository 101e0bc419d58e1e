"""Points of a space in any number: at random, or spread evenly by a scrambled Sobol sequence.

They follow from space and seed alone. So a driver that starts anew walks the same points again.
Source: Sobol', USSR Comput. Math. Math. Phys. 7 (1967); scrambled as in scipy.stats.qmc.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from random import Random

from eigensweep.search_spaces.space import Parameter, Point, Scalar, Space

BLOCK = 256
"""Rows of the sequence that are computed at once; a power of two keeps them balanced."""


def draw_at_random(space: Space, seed: int) -> Iterator[Point]:
    """Yield points without end: the arm, and each parameter, independent of all others."""
    rng = Random(seed)
    while True:
        axes = space.axes(arm := rng.choice(space.arms))
        yield Point(arm, _read(axes, [rng.random() for _ in axes]))


def quasi_random(space: Space, seed: int) -> Iterator[Point]:
    """Yield points without end: the arms in turn, each with a sequence of its own.

    Each parameter has a dimension of the sequence, also where its condition does not hold. In a
    space of few points they come more than once.

    >>> from eigensweep.search_spaces.space import Choice
    >>> points = quasi_random(Space({"lstm": {"optimizer.lr": Choice(values=(1, 2, 3, 4))}}), 0)
    >>> sorted(next(points).params["optimizer.lr"] for _ in range(4))
    [1, 2, 3, 4]
    """
    axes = {arm: space.axes(arm) for arm in space.arms}
    rows = {arm: _rows(len(axes[arm]), seed, place) for place, arm in enumerate(axes)}
    for arm in cycle(axes):
        yield Point(arm, _read(axes[arm], next(rows[arm])))


def _rows(dimensions: int, seed: int, stream: int) -> Iterator[list[float]]:
    """Yield rows of numbers from 0 to 1, one for each dimension."""
    if dimensions == 0:
        while True:
            yield []
    # scipy takes half a second to load, which the command line need not wait for.
    import numpy as np
    from scipy.stats import qmc  # type: ignore[import-untyped]

    sequence = qmc.Sobol(dimensions, rng=np.random.default_rng([seed, stream]))
    while True:
        yield from sequence.random(BLOCK).tolist()


def _read(axes: dict[str, Parameter], row: list[float]) -> dict[str, Scalar]:
    params: dict[str, Scalar] = {}
    for (path, axis), share in zip(axes.items(), row, strict=True):
        if axis.is_active(params):
            params[path] = axis.at(share)
    return params

"""How much of a value's variance each parameter explains: random trees, of NumPy alone.

Each tree learns the value from a resample of the trials, and splits them where that takes away most
variance, until few are left together. What a parameter's splits take away is its share: the mean
decrease of impurity. Source: Breiman, Random Forests, Machine Learning 45, 2001; Breiman, Friedman,
Olshen and Stone, Classification and Regression Trees, 1984, section 5.3.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eigensweep.search_spaces.parameters import Scalar

TREES: Final = 32
FEWEST: Final = 5
"""Fewer trials than these are not split any further, unless there were no more to begin with."""

Floats = NDArray[np.float64]


def find_shares(
    points: Sequence[Mapping[str, Scalar]], values: Sequence[float]
) -> dict[str, float]:
    """Return each parameter's share of what the trees learned, 0 to 1; they add up to 1.

    All points have the same parameters. All shares are 0 where no split takes anything away.

    >>> points = [{"lr": lr, "size": size} for lr in (0.1, 0.2, 0.3) for size in (8, 16)]
    >>> round(find_shares(points, [point["lr"] for point in points])["lr"], 1)
    1.0
    """
    columns, names = _spread(points)
    goal, rng = np.array(values, dtype=float), np.random.default_rng(0)
    taken = np.zeros(len(names))
    for _ in range(TREES):
        rows = rng.integers(len(goal), size=len(goal))
        found = _grow(columns[rows], goal[rows])
        taken += found / (found.sum() or 1.0)
    taken /= taken.sum() or 1.0
    shares = dict.fromkeys(points[0], 0.0)
    for name, share in zip(names, taken, strict=True):
        shares[name] += float(share)
    return shares


def _spread(points: Sequence[Mapping[str, Scalar]]) -> tuple[Floats, list[str]]:
    """Return a column for each parameter of numbers, and for each value of another, with names."""
    columns: list[NDArray[Any]] = []
    names: list[str] = []
    for path in points[0]:
        found = [point[path] for point in points]
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in found):
            columns.append(np.array(found, dtype=float))
        else:
            columns += [np.array([each == one for each in found]) for one in dict.fromkeys(found)]
        names += [path] * (len(columns) - len(names))
    return np.stack(columns, axis=1).astype(float), names


def _grow(columns: Floats, goal: Floats) -> Floats:
    """Return what the splits of one tree take away of the squared error, by column."""
    taken = np.zeros(columns.shape[1])
    fewest = max(2, min(FEWEST, len(goal)))
    waiting = [(columns, goal)]
    while waiting:
        columns, goal = waiting.pop()
        count = len(goal)
        if count < fewest:
            continue
        order = np.argsort(columns, axis=0, kind="stable")
        places = np.take_along_axis(columns, order, axis=0)
        left = np.cumsum((goal - goal.mean())[order], axis=0)[:-1]
        below = np.arange(1, count)[:, None]
        gains = left**2 * (1 / below + 1 / (count - below))
        gains[places[1:] == places[:-1]] = 0.0
        row, column = divmod(int(gains.argmax()), columns.shape[1])
        if gains[row, column] <= 1e-12 * (goal @ goal):
            continue
        taken[column] += gains[row, column]
        for part in (order[: row + 1, column], order[row + 1 :, column]):
            waiting.append((columns[part], goal[part]))
    return taken

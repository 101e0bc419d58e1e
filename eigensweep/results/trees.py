"""How much of a value's variance each parameter explains: random trees, of NumPy alone.

Each tree learns the value from a resample of the trials, and splits them where that takes away most
variance, until few are left together. What a parameter's splits take away is its share: the mean
decrease of impurity. Parameters that make one and the same split have equal shares of it, so that
neither rounding nor the order of the parameters decides.

Source: Breiman, Random Forests, Machine Learning 45, 2001; Breiman, Friedman, Olshen and Stone,
Classification and Regression Trees, 1984, section 5.3.4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from eigensweep.search_spaces.parameters import Scalar

TREES: Final = 32
FEWEST: Final = 5
"""Fewer trials than these are not split any further, unless there were no more to begin with."""
TIED: Final = 1e-9
"""Gains that differ relatively by no more than this are equal: what differs is rounding."""

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
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
    columns, owners = _spread(points)
    goal, rng = np.array(values, dtype=float), np.random.default_rng(0)
    goal -= goal.mean()  # the same shares wherever zero is
    taken = np.zeros(len(points[0]))
    for _ in range(TREES):
        rows = rng.integers(len(goal), size=len(goal))
        found = _grow(columns[rows], owners, goal[rows])
        taken += found / (found.sum() or 1.0)
    taken /= taken.sum() or 1.0
    return dict(zip(points[0], taken.tolist(), strict=True))


def _spread(points: Sequence[Mapping[str, Scalar]]) -> tuple[Floats, Ints]:
    """Return a column for each parameter of numbers, and for each value of another; and whose."""
    columns: list[NDArray[Any]] = []
    owners: list[int] = []
    for owner, path in enumerate(points[0]):
        found = [point[path] for point in points]
        if all(isinstance(each, int | float) and not isinstance(each, bool) for each in found):
            columns.append(np.array(found, dtype=float))
        else:
            columns += [np.array([each == one for each in found]) for one in dict.fromkeys(found)]
        owners += [owner] * (len(columns) - len(owners))
    return np.stack(columns, axis=1).astype(float), np.array(owners)


def _grow(columns: Floats, owners: Ints, goal: Floats) -> Floats:
    """Return what the splits of one tree take away of the squared error, by parameter."""
    taken = np.zeros(owners.max() + 1)
    fewest = max(2, min(FEWEST, len(goal)))
    waiting = [np.arange(len(goal))]
    while waiting:
        rows = waiting.pop()
        count = len(rows)
        if count < fewest:
            continue
        here, found = columns[rows], goal[rows]
        order = np.argsort(here, axis=0, kind="stable")
        places = np.take_along_axis(here, order, axis=0)
        left = np.cumsum((found - found.mean())[order], axis=0)[:-1]
        below = np.arange(1, count)[:, None]
        gains = left**2 * (1 / below + 1 / (count - below))
        gains[places[1:] == places[:-1]] = 0.0
        gain = gains.max()
        if gain <= 1e-12 * (found @ found):
            continue
        side, makers = _choose(gains >= (1 - TIED) * gain, order, owners)
        taken[makers] += gain / len(makers)
        waiting += [rows[side], rows[~side]]
    return taken


def _choose(tied: Bools, order: Ints, owners: Ints) -> tuple[Bools, list[int]]:
    """Return one of the best splits, as the rows on one side, and the parameters that make it.

    `tied` marks the best splits by last row and column of `order`. Which of them is chosen depends
    on the rows alone.
    """
    makers: dict[bytes, set[int]] = defaultdict(set)
    for row, column in zip(*(places.tolist() for places in tied.nonzero()), strict=True):
        side = np.zeros(len(order), dtype=bool)
        side[order[: row + 1, column]] = True
        makers[(side if side[0] else ~side).tobytes()].add(int(owners[column]))
    chosen = min(makers)
    return np.frombuffer(chosen, dtype=bool), sorted(makers[chosen])

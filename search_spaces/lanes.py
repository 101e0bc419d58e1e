"""How many trials share an engine."""

from __future__ import annotations

from typing import Final

SPARE_SHARE: Final = 8
"""For so many lanes one more trial waits, so that a lane that becomes free is refilled."""


def count_members(lanes: int, replicates: int) -> int:
    """Return how many trials share an engine: those that train, and the spare ones that wait.

    Each replicate of a trial takes a lane.

    >>> count_members(32, 1), count_members(4, 1), count_members(8, 3), count_members(2, 5)
    (36, 5, 3, 2)
    """
    training = max(1, lanes // replicates)
    return training + -(-training // SPARE_SHARE)

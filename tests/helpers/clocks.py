"""A clock for tests of what depends on time."""

from __future__ import annotations


class Clock:
    """A clock that stands still until somebody spends time."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

"""How well the lanes of an engine are used, over time."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

KEPT_SPANS = 10_000
"""Spans that are remembered; the totals count all of them."""


@dataclass(frozen=True)
class Span:
    """A while in which the lanes that had the device were equally occupied."""

    start: float
    """Seconds by the engine's clock."""
    seconds: float
    lanes: int
    occupied: int
    waiting: int
    """Replicates that waited for one of these lanes."""


class Occupancy:
    """Lane-seconds by what the lanes did: a lane that stands idle for a second is one of them."""

    def __init__(self) -> None:
        self.occupied = 0.0
        self.idle_wanted = 0.0
        """Idle although somebody waited for a lane."""
        self.idle = 0.0
        """Idle because nobody waited."""
        self.spans: deque[Span] = deque(maxlen=KEPT_SPANS)

    def add(self, span: Span) -> None:
        """Count a while; equal ones that follow one another are kept as one."""
        free = span.lanes - span.occupied
        wanted = min(free, span.waiting)
        self.occupied += span.occupied * span.seconds
        self.idle_wanted += wanted * span.seconds
        self.idle += (free - wanted) * span.seconds
        last = self.spans[-1] if self.spans else None
        if last is not None and _counts(last) == _counts(span):
            whole = Span(last.start, span.start + span.seconds - last.start, *_counts(span))
            self.spans[-1] = whole
        else:
            self.spans.append(span)

    @property
    def wasted(self) -> float:
        """The share of lane-seconds that stood idle although somebody waited."""
        total = self.occupied + self.idle_wanted + self.idle
        return self.idle_wanted / total if total else 0.0


def _counts(span: Span) -> tuple[int, int, int]:
    return span.lanes, span.occupied, span.waiting

"""Why a running experiment, or a trial, should stop: a person wants it, or its time is over."""

from __future__ import annotations

import time
from collections.abc import Set

from eigensweep.protocol.ledger import PAUSED, CourseLedger
from eigensweep.store.marks import Mark, cancel_mark, pause_mark
from eigensweep.store.places.store_watch import StoreWatch

CANCELLED = "cancelled on request"
"""The reason of a person."""

ASK_SECONDS = 1.0
"""The ledger is asked at most this often."""

MARK_SECONDS = 60.0
"""Seconds between two checks of the marks without a change: an earlier driver that was cut off may
have left another mark."""


class StopReason:
    """Tells why an experiment should stop. The first reason stays, and its trials see a mark.

    Only a pause may be followed by another reason, a cancellation. Marks of an earlier stop are
    removed when the experiment goes on. While the store does not answer, the marks stay as they
    are, and the reason still holds.
    """

    def __init__(
        self,
        experiment: str,
        ledger: CourseLedger,
        storage: str,
        store: StoreWatch,
        wall_seconds: float | None = None,
        deadline: float | None = None,
    ) -> None:
        """Take the limit `wall_seconds`, and the `time.monotonic()` at which it is over."""
        self._store = store
        self._ledger, self._wall_seconds, self._deadline = ledger, wall_seconds, deadline
        self._cancel_mark = cancel_mark(storage, experiment)
        self._pause_mark = pause_mark(storage, experiment)
        self._reason: str | None = None
        self._marked_at = float("-inf")
        """When the marks in the store became those of the reason."""
        self.asked_at = float("-inf")
        """When the ledger was asked last, by `time.monotonic`."""
        self._waits_since: float | None = None
        self.stops: Set[int] = frozenset()
        """The trials that a person has asked to stop."""

    def stop_clock(self, waits: bool) -> None:
        """Let the time limit stand still while the experiment waits for a place."""
        now = time.monotonic()
        if waits:
            self._waits_since = now if self._waits_since is None else self._waits_since
        elif self._waits_since is not None:
            if self._deadline is not None:
                self._deadline += now - self._waits_since
            self._waits_since = None

    def __call__(self) -> str | None:
        """Return the reason in words, None if the experiment should go on."""
        if time.monotonic() - self.asked_at < ASK_SECONDS:
            return self._reason
        self.asked_at, before = time.monotonic(), self._reason
        if before is None or self.is_pause:
            self._reason = self._find() or before
        if self._reason != before:
            self._marked_at = float("-inf")
        if self.asked_at >= self._marked_at + MARK_SECONDS and self._store.may_ask:
            with self._store.asking():
                self._mark()
                self._marked_at = self.asked_at
        return self._reason

    @property
    def is_cancellation(self) -> bool:
        """Whether the last reason is that a person cancels the experiment."""
        return self._reason == CANCELLED

    @property
    def is_pause(self) -> bool:
        """Whether the last reason is a pause."""
        return self._reason == PAUSED

    def _mark(self) -> None:
        """Write the mark of the reason, and remove all others."""
        right: Mark | None = None
        if self._reason is not None:
            right = self._pause_mark if self.is_pause else self._cancel_mark
            right.touch()
        for mark in (self._cancel_mark, self._pause_mark):
            if mark != right:
                mark.unlink()

    def _find(self) -> str | None:
        intent, self.stops = self._ledger.intent(), self._ledger.find_stops()
        if intent == "cancel":
            return CANCELLED
        now = time.monotonic() if self._waits_since is None else self._waits_since
        if self._deadline is not None and now > self._deadline:
            return f"its {self._wall_seconds:g} s are over (limits.wall_seconds)"
        return PAUSED if intent == "pause" else None

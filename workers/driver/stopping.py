"""Why a running experiment should stop: a person cancelled it, or its time is over."""

from __future__ import annotations

import time

from eigensweep.workers.shared.checkpoints import cancel_mark
from eigensweep.workers.shared.ledger import Ledger

ASK_SECONDS = 1.0
"""The ledger is asked at most this often."""


class StopReason:
    """Tells why an experiment should stop. The first reason stays, and its trials see a mark."""

    def __init__(
        self,
        experiment: str,
        ledger: Ledger,
        storage: str,
        wall_seconds: float | None = None,
        deadline: float | None = None,
    ) -> None:
        """Take the limit `wall_seconds`, and the `time.time()` at which it is over."""
        self._ledger, self._wall_seconds, self._deadline = ledger, wall_seconds, deadline
        self._mark = cancel_mark(storage, experiment)
        self._reason: str | None = None
        self._asked_at = float("-inf")

    def __call__(self) -> str | None:
        """Return the reason in words, None if the experiment should go on."""
        if self._reason is None and time.monotonic() - self._asked_at >= ASK_SECONDS:
            self._asked_at = time.monotonic()
            self._reason = self._find()
            if self._reason is not None:
                self._mark.parent.mkdir(parents=True, exist_ok=True)
                self._mark.touch()
        return self._reason

    def _find(self) -> str | None:
        if self._ledger.intent() == "cancel":
            return "cancelled on request"
        if self._deadline is not None and time.time() > self._deadline:
            return f"limits.wall_seconds: {self._wall_seconds:g} seconds are over"
        return None

"""Trials that fail one after another: because of one node, or because of a bug in all of them.

A node on which trials fail at once gets the next trial soonest, so it would consume a whole sweep.
A bug in a model makes trials fail on every node. Such a sweep is paused, since each further trial
would fail in the same way.
"""

from __future__ import annotations

from eigensweep.protocol.messages import Notice
from eigensweep.protocol.states import UNTRAINED
from eigensweep.results.trial_result import Outcome

MOST_HERE = 5
"""Trials that fail in a row on one node, while none fails elsewhere, before the node is cordoned.
Where a quarter of all trials fails, one row in a thousand is that long by chance, and costs
seconds."""

MOST_IN_A_ROW = 30
"""Trials that fail in a row, anywhere, before the experiment is paused. Where three quarters of all
trials fail, a row of thirty begins once in 20,000 trials."""

LONGEST_ERROR = 3000
"""Characters of the last error that a person is shown: the end of a traceback says most."""


class Failures:
    """Counts trials that fail one after another."""

    def __init__(self) -> None:
        self._node: str | None = None
        """The place of the last failure."""
        self._here = 0
        """Failures there since a trial made progress there or failed elsewhere."""
        self._in_a_row = 0
        self._last = ""
        """The error of the last failure."""

    @property
    def are_too_many(self) -> bool:
        """Whether so many failed in a row that the experiment should be paused."""
        return self._in_a_row >= MOST_IN_A_ROW

    def see_progress(self, node: str | None) -> None:
        """Note that a trial makes progress there."""
        if node == self._node:
            self._here = 0

    def see_end(self, outcome: Outcome, node: str | None, error: str | None) -> bool:
        """Note how a trial has ended; return whether its node should be cordoned."""
        if outcome in ("completed", "pruned", "diverged"):
            self._in_a_row = 0
            self.see_progress(node)
        if outcome not in UNTRAINED:
            return False
        self._in_a_row += 1
        self._last = error or "unknown"
        self._here = self._here + 1 if node == self._node else 1
        self._node = node
        if node is None or self._here < MOST_HERE:
            return False
        self._here = MOST_HERE - 1  # when it is tried again, one more trial tells enough
        return True

    def notice(self) -> Notice:
        """Return why the experiment should be paused, once `are_too_many`."""
        words = (
            f"paused, because {self._in_a_row} trials in a row have failed and none has ended well "
            "in between. Once the reason is mended, resume it: it goes on with the trials that are "
            "left, and when it is over, `eigensweep retry` trains those that failed. The last "
            f"error: {self._last.strip()[-LONGEST_ERROR:]}"
        )
        return Notice("failures", words)

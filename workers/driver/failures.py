"""Trials that fail one after another: by a node that nobody foresaw, or by a bug that all meet.

A node that fails trials at once asks for the next one soonest, so it would eat a whole sweep. It is
told from a bug in a model by where trials fail: a bug fails them on every node. Such a sweep is
paused, since each further trial would tell the same.
"""

from __future__ import annotations

from eigensweep.workers.shared.messages import Notice
from eigensweep.workers.shared.states import UNTRAINED, Outcome

MOST_HERE = 5
"""Trials that fail in a row on one node, while none fails elsewhere, before it is left out. Where a
quarter of all trials fails, one row in a thousand is that long by chance, and costs seconds."""

MOST_IN_A_ROW = 30
"""Trials that fail in a row, anywhere, before the experiment is paused. Where three quarters of all
fail, a row of thirty begins once in 20,000 trials; and who has seen thirty has seen the reason."""

LONGEST_ERROR = 3000
"""Characters of the last error that people are told; of a traceback the end says most."""


class Failures:
    """Counts trials that fail one after another."""

    def __init__(self) -> None:
        self._node: str | None = None
        """Where the last one failed."""
        self._here = 0
        """Trials that failed there since one came on there, or failed elsewhere."""
        self._in_a_row = 0
        self._last = ""
        """The error of the last one."""

    @property
    def are_too_many(self) -> bool:
        """Whether so many failed in a row that the experiment should be paused."""
        return self._in_a_row >= MOST_IN_A_ROW

    def see_progress(self, node: str | None) -> None:
        """Note that a trial comes on there."""
        if node == self._node:
            self._here = 0

    def see_end(self, outcome: Outcome, node: str | None, error: str | None) -> bool:
        """Note how a trial has ended; return whether its node should be left out."""
        if outcome in ("completed", "pruned", "diverged"):
            self._in_a_row = 0
            self.see_progress(node)
        if outcome not in UNTRAINED:
            return False
        self._in_a_row += 1
        self._last = error or "unknown"
        return self.see_loss(node)

    def see_loss(self, node: str | None) -> bool:
        """Note that a trial could not go on there; return whether the node should be left out."""
        self._here = self._here + 1 if node == self._node else 1
        self._node = node
        if node is None or self._here < MOST_HERE:
            return False
        self._here = MOST_HERE - 1  # when it is tried again, one more trial tells enough
        return True

    def notice(self) -> Notice | None:
        """Return why the experiment is paused; None: it should not be."""
        if not self.are_too_many:
            return None
        words = (
            f"paused, because {self._in_a_row} trials in a row have failed and none has ended well "
            "in between. Once the reason is mended, resume it: it goes on with the trials that are "
            "left, and when it is over, `eigensweep retry` trains those that failed. The last "
            f"error: {self._last.strip()[-LONGEST_ERROR:]}"
        )
        return Notice("failures", words)

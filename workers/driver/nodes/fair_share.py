"""How many trials an experiment may run beside the others, and why.

A driver starts no trial beyond its share. It ends none either: a slot passes to another experiment
when its trial ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from eigensweep.protocol.fair_shares import Allotment, Demand
from eigensweep.protocol.ledger import ShareLedger
from eigensweep.protocol.messages import Notice

LOOK_SECONDS: Final = 2.0
"""How long a driver relies on what it has read of its share."""


class FairShare:
    """One experiment's share, as the ledger has it."""

    def __init__(self, ledger: ShareLedger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger, self._clock = ledger, clock
        self._demand = Demand(0)
        self._told: Demand | None = None
        """What the ledger has."""
        self._may_have = Allotment()
        self._looked_at = float("-inf")

    def count(self, find_demand: Callable[[], Demand]) -> int:
        """Return how many trials may run at once now.

        `find_demand` is called every `LOOK_SECONDS`, and the ledger is told if the demand has
        changed.
        """
        if self._clock() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = self._clock()
            self._demand = find_demand()
            if self._demand != self._told:
                self._ledger.record_demand(self._demand)
                self._told = self._demand
            self._may_have = self._ledger.find_allotment()
        return self._may_have.trials

    @property
    def wanted(self) -> int:
        """How many trials could run at once, were there no other experiment."""
        return self._demand.trials

    @property
    def has_no_place(self) -> bool:
        """Whether the trials of other experiments leave no slot for this one."""
        has_none = self._may_have.trials < min(1, self.wanted) or self._may_have.is_crowded
        return self._may_have.others > 0 and has_none

    @property
    def leaves_gpus(self) -> bool:
        """Whether these trials need no GPU while another experiment waits for one."""
        return self._may_have.leaves_gpus

    def notice(self) -> Notice | None:
        """Return why trials wait for those of other experiments; None: they do not."""
        share, count = self._may_have.trials, self._may_have.others
        if not count:
            return None
        words = f"its fair share is {share} of {self.wanted} places"
        words += f", beside {count} other experiment{'s' * (count != 1)}"
        if higher := self._may_have.higher:
            words += f", {higher} of higher priority"
        if share < self.wanted:
            return Notice("share", words)
        if self._may_have.is_crowded:
            return Notice("share", f"{words}; it gets them when trials of others end")
        return None

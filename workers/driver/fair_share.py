"""How many trials an experiment may run beside the others, and the words for why.

A driver keeps to its share by itself: it starts no trial beyond it. Trials that run already are not
ended, so a place changes hands when its trial ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from eigensweep.workers.shared.fair_shares import Contender, Want, finds_place, share_out
from eigensweep.workers.shared.ledger import Ledger
from eigensweep.workers.shared.messages import Notice

LOOK_SECONDS: Final = 2.0
"""How long a driver relies on what it knows of other experiments."""


class FairShare:
    """One experiment's share, as it follows from what all experiments in the ledger want."""

    def __init__(
        self,
        experiment: str,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._experiment, self._ledger, self._clock = experiment, ledger, clock
        self._want = Want(0)
        self._told: Want | None = None
        """What the ledger has."""
        self._contenders: list[Contender] = []
        self._wishes: dict[str, Contender] = {}
        """The same without what runs, as the share was computed from it."""
        self._shares: Mapping[str, int] = {}
        self._looked_at = float("-inf")

    def count(self, find_want: Callable[[], Want]) -> int:
        """Return how many trials may run at once now.

        `find_want` says what the experiment wants. It is asked every `LOOK_SECONDS`, and the ledger
        is told if that has changed.
        """
        if self._clock() >= self._looked_at + LOOK_SECONDS:
            self._looked_at = self._clock()
            self._look(find_want())
        return self._share

    @property
    def _share(self) -> int:
        return self._shares.get(self._experiment, 0)

    def _look(self, want: Want) -> None:
        self._want = want
        if want != self._told:
            self._ledger.ask_for(want)
            self._told = want
        self._contenders = self._ledger.list_contenders()
        wishes = {each.experiment: replace(each, running=0) for each in self._contenders}
        if wishes != self._wishes:  # what runs changes often, and no share with it
            self._wishes = wishes
            self._shares = share_out(list(wishes.values()))

    @property
    def wanted(self) -> int:
        """How many trials could run at once, were there no other experiment."""
        return self._want.trials

    @property
    def has_no_place(self) -> bool:
        """Whether the trials of other experiments leave no place for one more of this one."""
        return bool(self._others) and (
            self._share < min(1, self.wanted) or not finds_place(self._want, self._contenders)
        )

    @property
    def is_beside_gpus(self) -> bool:
        """Whether trials here need no GPU, and those of another experiment wait for one."""
        return not self._want.parts.get("GPU") and any(
            each.want.parts.get("GPU") and each.running < self._shares.get(each.experiment, 0)
            for each in self._others
        )

    def notice(self) -> Notice | None:
        """Return why trials wait for those of other experiments; None: they do not."""
        count = len(self._others)
        if not count:
            return None
        words = f"its fair share is {self._share} of {self.wanted} places"
        words += f", beside {count} other experiment{'s' * (count != 1)}"
        own = next((c for c in self._contenders if c not in self._others), None)
        higher = sum(own is not None and each.priority > own.priority for each in self._others)
        if higher:
            words += f", {higher} of higher priority"
        if self._share < self.wanted:
            return Notice("share", words)
        if own is not None and own.running < self._share and self.has_no_place:
            return Notice("share", f"{words}; it gets them when trials of others end")
        return None

    @property
    def _others(self) -> list[Contender]:
        return [c for c in self._contenders if c.experiment != self._experiment]

"""Which experiments share one driver's process: when it ends, and for whom its death counts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass
class Crew:
    """The experiments that a driver's process has at the same time. Threads may share it."""

    aboard: int = 1
    """How many there are; after 0 nobody joins any more."""
    has_failed: bool = False
    """Whether one of them failed: then nobody joins, and the process ends after the last one."""
    _died_with: int = 0
    """How many there were when the process was first seen to be dead."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def join(self) -> bool:
        """Count one more; return False if the process should not have it."""
        with self._turn:
            if not self.aboard or self.has_failed:
                return False
            self.aboard += 1
            return True

    def leave(self, *, failed: bool = False) -> bool:
        """Count one less, which may have failed; return whether it was the last one."""
        with self._turn:
            self.aboard -= 1
            self.has_failed |= failed
            return not self.aboard

    def die(self) -> bool:
        """Note that the process is dead; return whether several experiments died with it.

        Each of them asks, one after the other, and gets the same answer.
        """
        with self._turn:
            self._died_with = self._died_with or self.aboard
            self.has_failed = True
            return self._died_with > 1

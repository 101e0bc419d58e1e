"""Says on an experiment where its driver stands still, as in an endless loop of a package."""

from __future__ import annotations

import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

from eigensweep.protocol.messages import Notice

logger = logging.getLogger(__name__)

STILL_SECONDS: Final = 300.0
"""A driver that has not asked its ledger for so long stands still. One request to a store that does
not answer takes a minute, and a corpus takes a while to be stored."""
LOOK_SECONDS: Final = 5.0
"""Between two looks whether it stands still."""
OWN: Final = "eigensweep."
"""How the names of our own modules begin."""


class Standstill:
    """Watches, in a thread, over the thread that enters it as a context."""

    def __init__(
        self, tell: Callable[[Notice], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take who is told of each standstill once, which may fail."""
        self._tell, self._clock = tell, clock
        self._began = clock()
        self._seen_at: Callable[[], float] = lambda: -math.inf
        self._thread = threading.get_ident()
        self._told_of: float | None = None
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._watch, name="standstill", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def follow(self, seen_at: Callable[[], float], tell: Callable[[Notice], None]) -> None:
        """Ask from now on `seen_at` when the thread was seen to go on, and tell `tell`."""
        self._seen_at, self._tell = seen_at, tell

    def look(self) -> None:
        """Tell of a standstill, unless this one is told already."""
        seen = max(self._began, self._seen_at())
        if self._clock() < seen + STILL_SECONDS or seen == self._told_of:
            return
        self._told_of = seen
        try:
            notice = _describe(self._thread, time.time() - (self._clock() - seen))
            logger.warning(notice.words)
            self._tell(notice)
        except Exception:  # the record may be what the thread waits for
            logger.warning("the record was not told of a standstill", exc_info=True)

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.look()


def _describe(thread: int, since: float) -> Notice:
    """Return what a person should know of a thread that stands still since a Unix time.

    Named are our own innermost call, what it calls, which may be a package's, and the innermost.
    """
    calls = list(traceback.walk_stack(sys._current_frames()[thread]))
    is_own = [str(call.f_globals.get("__name__")).startswith(OWN) for call, _ in calls]
    last = is_own.index(True) if any(is_own) else 1
    told = sorted({last, max(0, last - 1), 0}, reverse=True)
    place = ", which calls ".join(_name(*calls[each]) for each in told)
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(since))
    words = (
        f"its driver has stood still since {moment}: {place}. Trials that run go on, but no others "
        "begin. If that does not end, pause or cancel the experiment: the driver is ended five "
        "minutes later"
    )
    return Notice("driver", words)


def _name(call: FrameType, line: int) -> str:
    return f"{call.f_code.co_name} ({call.f_code.co_filename}:{line})"

"""Whether the store answers a driver, which waits for the end of an outage and reports it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from eigensweep.protocol.messages import Notice
from eigensweep.store.places.durable_files import (
    DamagedError,
    StorageError,
    StoreAwayError,
    StoreKeysError,
)

logger = logging.getLogger(__name__)

FIRST_PAUSE: Final = 2.0
"""Seconds after which a store that does not answer is asked again; later pauses are longer."""
LONGEST_PAUSE: Final = 30.0
"""Each try may itself take a minute, in which the driver does nothing else."""

FAULTS: Final[dict[type[Exception], str]] = {
    StoreKeysError: "has refused the driver",
    StoreAwayError: "has not answered",
    Exception: "could not be used",
}
"""The kinds of errors of the store; the first that matches counts."""


class StoreWatch:
    """Remembers since when the store does not answer. It sends no request by itself."""

    def __init__(self, experiment: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._experiment, self._clock = experiment, clock
        self._ask_at, self._pause = float("-inf"), FIRST_PAUSE
        self._fault: str | None = None
        self.notice: Notice | None = None
        """Why new trials wait for the store; None: it answered when it was asked last."""

    @property
    def may_ask(self) -> bool:
        """Whether the store answered when it was asked last, or the pause since then is over."""
        return self.notice is None or self._clock() >= self._ask_at

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Run a block that uses the store; if the store fails, note that and go on.

        Damaged files are no outage: the next attempt of their trial goes back to an earlier commit.
        """
        try:
            yield
        except DamagedError as error:
            logger.warning("%s experiment=%s", error, self._experiment)
        except (StorageError, OSError) as error:
            self._note(error)
        else:
            if self.notice is not None:
                logger.info("the store answers again experiment=%s", self._experiment)
            self.notice, self._fault, self._pause = None, None, FIRST_PAUSE

    def _note(self, error: StorageError | OSError) -> None:
        self._ask_at = self._clock() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        fault = next(words for kind, words in FAULTS.items() if isinstance(error, kind))
        if fault == self._fault:  # the words stay the same, and so does what the ledger is told
            return
        self._fault = fault
        words = (
            f"the store {fault} since {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}: {error}"
            ". Trials wait, and go on by themselves from their last commits when it can be used "
            "again"
        )
        self.notice = Notice("store", words)
        logger.warning("%s experiment=%s", words, self._experiment)

"""Whether the store answers, and what it answers: asked beside the threads of the requests.

A folder that other machines share may hang for ever, and whoever reads there with it. So those
threads wait here, and requests that have not got one of them yet are refused in words. Runs in the
service's process.
"""

from __future__ import annotations

import io
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar

from eigensweep.common.aside import call_aside
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError, StoreAwayError
from eigensweep.store.places.files import is_url
from eigensweep.store.places.object_files import PROXY

T = TypeVar("T")

FRESH_SECONDS: Final = 5.0
"""Seconds for which what was seen is told again."""
PATIENCE_SECONDS: Final = 2.0
"""How long a request waits for the store. It may not answer for minutes, and a folder that another
machine shares may hang for ever."""
LONGEST_SECONDS: Final = 120.0
"""How long a request waits for its own answer while the store answers other questions."""
WHOLE_SECONDS: Final = 3600.0
"""The same of an answer that takes a look at each trial of an experiment, or at the whole store."""


def _close(late: Future[Any]) -> None:
    """Close the file that is an answer for which nobody waits any more."""
    if late.exception() is None and isinstance(found := late.result(), io.IOBase):
        found.close()


class StoreProbe:
    """Looks whether the store answers, in a thread of its own, one look at a time."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.place, self.store = place, Store(place)
        self._clock = clock
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fresh_until = float("-inf")
        self._found: str | None = None
        self._since: float | None = None
        """Unix time of the first look of those that found something, or are still waited for."""

    def ask(self, act: Callable[[Store], T], longest: float = LONGEST_SECONDS) -> T:
        """Return what `act` reads in the store, waiting while the store answers others.

        Raises:
            StoreAwayError: if the store does not answer; at once where that is known, and after
                `longest` seconds where it answers others.
            Exception: whatever `act` raises.
        """
        answer: Future[T] | None = None
        until = self._clock() + longest
        while answer is None or not wait([answer], PATIENCE_SECONDS).done:
            problem = self.find_problem()
            if problem is None and self._clock() >= until:
                problem = f"{self.place} answers others, and not this for {longest:g} s"
            if problem is not None:
                if answer is not None:
                    answer.add_done_callback(_close)
                raise StoreAwayError(problem)
            answer = answer or call_aside(partial(act, self.store), "store")
        return answer.result()

    def find_problem(self) -> str | None:
        """Return why the store cannot be used, and since when; None: it answers."""
        with self._turn:
            is_looking = self._thread is not None and self._thread.is_alive()
            if not is_looking and self._clock() >= self._fresh_until:
                self._thread = threading.Thread(target=self._look, name="store", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_SECONDS)
        is_late = thread is not None and thread.is_alive()
        found = self._found or (f"no answer from {self.place} yet" if is_late else None)
        if found is None:
            self._since = None
            return None
        self._since = self._since or time.time()
        moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._since))
        return f"the store has not answered since {moment}: {found}. Drivers and trials wait for it"

    def _look(self) -> None:
        try:
            files, name = self.store.files, f".probe/{secrets.token_hex(8)}"
            is_foreign = files.size(name) is not None
            if is_url(self.place):
                is_foreign |= bool(files.names(name))
            else:
                files.names("")  # of a folder that is missing Linux reads nothing
            foreign = f"{self.place} shows a file that nobody wrote; {PROXY}"
            self._found = foreign if is_foreign else None
        except StorageError as error:
            self._found = str(error)
        self._fresh_until = self._clock() + FRESH_SECONDS

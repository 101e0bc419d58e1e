"""What a trial's process prints, kept in the store for `eigensweep logs`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import Any, ClassVar, Final, TextIO

from eigensweep.protocol.messages import Order
from eigensweep.store.checkpoints import Store, replicate_key
from eigensweep.store.commits.head import StaleAttemptError
from eigensweep.store.commits.kept_files import PRINTED
from eigensweep.store.places.durable_files import StorageError

LONGEST: Final = 64 * 1024
"""So many characters are kept, the newest."""
PAUSE_SECONDS: Final = 2.0
"""From the first character that is not kept yet until all are kept."""


class Printed:
    """A context in which all that this process prints is kept in the store as well.

    That is what Python writes to standard output and standard error, warnings and logs too, but not
    what a library in C writes, nor what a process writes that is forked from this one. Where the
    store fails, nothing is said here: commits say it.
    """

    now: ClassVar[Printed | None] = None
    """The one whose context this process is in."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._text = self._kept = ""
        self._timer: threading.Timer | None = None
        # What Python calls while one thread prints, such as `__del__`, may print, too.
        self._adding, self._keeping = threading.RLock(), threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = map(_make_tee, self._before)
        Printed.now = self

    def __exit__(self, *_: object) -> None:
        Printed.now = None
        sys.stdout, sys.stderr = self._before
        self._keep()

    def add(self, text: str) -> None:
        """Append a text, and have it kept soon."""
        if os.getpid() != self._process:
            return
        with self._adding:
            self._text = (self._text + text)[-LONGEST:]
            if self._timer is None:
                timer = threading.Timer(PAUSE_SECONDS, self._keep)
                timer.daemon = True
                with suppress(RuntimeError):  # there may be no more threads: it is kept at the end
                    timer.start()
                    self._timer = timer

    def _keep(self) -> None:
        with self._keeping:
            with self._adding:
                text, timer, self._timer = self._text, self._timer, None
            if timer is not None:
                timer.cancel()
            if text == self._kept:
                return
            order, seed = self._order, self._order.config["seed"]
            assert isinstance(seed, int)
            key = replicate_key(order.experiment, order.number, seed)
            with suppress(StaleAttemptError, StorageError):
                content = text.encode(errors="replace")
                kept = Store(order.storage).kept
                kept.write(key, order.attempt, PRINTED, content, may_be_first=True)
                self._kept = text


@cache
def _make_tee(stream: TextIO) -> _Tee:
    """Return the tee of a stream, which is never freed: a thread of the trial may be printing."""
    return _Tee(stream)


class _Tee:
    """A stream whose text is also kept for the trial that trains now.

    A log handler may hold it longer than the trial that it was made for.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if (printed := Printed.now) is not None:
            printed.add(text)
        return self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

"""Looks that a measurement takes again and again beside what it measures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def look_every(seconds: float, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every so many seconds, in a thread, as long as this is open."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            look()

    thread = threading.Thread(target=repeat, name="looks", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

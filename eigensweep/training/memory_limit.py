"""Ends a trial's process that holds more memory than the trial may, before others have to suffer.

The limit is no `RLIMIT_AS` or `RLIMIT_DATA`: they count addresses that were only reserved, of which
PyTorch, CUDA and Ray take many gigabytes, and where they are met, the next allocation of any thread
fails, of Ray's as well, which then aborts without a word. So a thread looks at the memory that is
really there. The process ends as a whole, because only that gives memory back for sure; it leaves
its last words in the store, where the driver looks for them.
"""

from __future__ import annotations

import logging
import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress

from eigensweep.protocol.messages import Order
from eigensweep.store.checkpoints import Store
from eigensweep.store.places.durable_files import StorageError
from eigensweep.training.memory import give_back, private_bytes

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""Pause between two looks: in it a process touches a few hundred megabytes at most."""
EXIT_CODE = 86
"""Of a process that has ended itself because of its memory."""
WORDS_SECONDS = 5.0
"""Longest time for the last words: meanwhile the process holds more than it may."""
KIND = "MemoryLimitError"
"""First word of the last words, as of an exception: lists of failures are sorted by it."""


class MemoryWatch:
    """A thread that looks whether this process holds more than its limit.

    It needs Python's lock for a moment. A process that hangs in native code and keeps that lock is
    not ended here, but by Ray or the kernel when the machine has no memory left.
    """

    def __init__(
        self,
        limit: int,
        end: Callable[[int], None],
        measure: Callable[[], int | None] = private_bytes,
    ) -> None:
        """`end` is called once, with the bytes that are held."""
        self._limit, self._end, self._measure = limit, end, measure
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory", daemon=True)

    def start(self) -> None:
        """Begin to look; memory that an earlier trial of this process left is given back first."""
        give_back()
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopping.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            if not self._is_over():
                continue
            give_back()  # what is kept for the next step does not count
            held = self._measure()
            if held is not None and held > self._limit:
                self._end(held)
                return

    def _is_over(self) -> bool:
        held = self._measure()
        return held is not None and held > self._limit


def watch(order: Order) -> MemoryWatch | None:
    """Watch over this process for an order's trial; None if it may take any amount.

    A trial in the lanes of an engine is not watched: a group of lanes that finds no memory becomes
    smaller.
    """
    if order.memory_limit is None or order.engine is not None or private_bytes() is None:
        return None
    limit = order.memory_limit

    def end(held: int) -> None:
        words = explain(order.number, held, limit)
        logger.error("%s", words, extra={"trial": order.number})
        late = threading.Timer(WORDS_SECONDS, os._exit, [EXIT_CODE])  # a store may answer late
        late.daemon = True
        late.start()
        try:
            with suppress(StorageError):  # the loss of the process is noticed without them
                Store(order.storage).files.write(last_words(order), words.encode())
        finally:
            os._exit(EXIT_CODE)

    made = MemoryWatch(limit, end)
    made.start()
    return made


def explain(number: int, held: int, limit: int) -> str:
    """Return the words for a person whose trial held too much memory; both in bytes."""
    return (
        f"{KIND}: trial {number} held {held / 1e9:.2f} GB of memory on node {platform.node()}, "
        f"process {os.getpid()}; its limit was {limit / 1e9:.2f} GB. It was ended alone, and its "
        "place is free. A smaller task.batch_size, shorter sequences or fewer hidden units take "
        "less; if the trial needs that much, set resources.memory to more"
    )


def last_words(order: Order) -> str:
    """Return the file of the store in which an attempt that held too much memory says so."""
    return f"{order.experiment}/memory/{order.number}-{order.attempt}"


def read_last_words(order: Order) -> str | None:
    """Return why an attempt has ended itself; None if it did not."""
    try:
        return Store(order.storage).files.read(last_words(order)).decode()
    except (FileNotFoundError, StorageError):
        return None

"""Why a process ended: a value that crosses processes, and words for a person."""

from __future__ import annotations

import re
import signal
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eigensweep.common.machine import find_crowd
from eigensweep.protocol.ledger import OtherVersionError, SupersededError
from eigensweep.store.places.durable_files import DISK_ERRORS, StoreAwayError
from eigensweep.training.errors import is_out_of_threads

Cause = Literal[
    "failure", "memory", "threads", "ray", "store", "code", "unseen", "stuck", "superseded"
]
"""What ended a process: what it did (`failure`), a machine without memory, or without a thread more
(`threads`), a Ray that it could not connect to, a store that was away or a disk that was full or
broken (`store`), a service of another version of the code, something that nobody saw, the service
since it did not do what it was asked for (`stuck`), or a successor's arrival."""

OTHER_CODE = (
    "the code on the disk is not the running service's: restart the service, and what is under way "
    "goes on"
)

OOM_KILLS = Path("/proc/vmstat")
"""Where Linux counts the processes that it has killed for lack of memory."""

LONGEST_SUMMARY = 400
"""Characters of the line in which Ray says how much memory was taken."""


@dataclass(frozen=True)
class Death:
    """Why a process ended."""

    words: str
    cause: Cause = "failure"

    @property
    def line(self) -> str:
        """The line that says most: of a traceback the last, of other words the first."""
        first, *_, last = self.words.strip().splitlines() * 2
        return last if first.startswith("Traceback") else first

    def __str__(self) -> str:
        return self.words


def explain(error: BaseException) -> Death:
    """Return what ended a driver that raised this error. Ray Tune raises its own from another's.

    >>> explain(ValueError("a bug")).cause
    'failure'
    >>> import errno
    >>> away = StoreAwayError("cannot list s3://lab/x")
    >>> [explain(each).cause for each in (away, OSError(errno.ENOSPC, "No space left on device"))]
    ['store', 'store']
    >>> of_tune = RuntimeError("Tune's own words")
    >>> of_tune.__cause__ = MemoryError()
    >>> explain(of_tune).cause
    'memory'
    """
    chain = list(_chain(error))
    for each in chain:
        if isinstance(each, SupersededError):
            return Death(str(each), "superseded")
    words = "".join(traceback.format_exception(error))
    if any(isinstance(each, OtherVersionError) for each in chain):
        return Death(f"{OTHER_CODE} ({error})", "code")
    if is_out_of_threads(error):
        return Death(name_crowd(words), "threads")
    if any(isinstance(each, MemoryError) for each in chain):
        return Death(words, "memory")
    return Death(words, "store" if any(map(_is_of_the_store, chain)) else "failure")


def name_crowd(words: str) -> str:
    """Return words on an end, with the limit where hardly any thread can be started now."""
    crowd = None
    with suppress(Exception):  # where no file can be opened, either, there is more to tell
        crowd = find_crowd()
    return words if crowd is None else f"{words.rstrip()}; {crowd}"


def _is_of_the_store(error: BaseException) -> bool:
    """Tell whether the store was away, or a disk is full, broken or gone."""
    is_of_a_disk = isinstance(error, OSError) and error.errno in DISK_ERRORS
    return is_of_a_disk or isinstance(error, StoreAwayError)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def describe_status(status: int) -> str:
    """Return words for an exit status, negative for a signal.

    >>> describe_status(-9), describe_status(-35), describe_status(1)
    ('by SIGKILL', 'by signal 35', 'with status 1')
    """
    if status < 0:
        known = {each.value: each.name for each in signal.Signals}
        return f"by {known.get(-status, f'signal {-status}')}"
    return f"with status {status}"


def count_kills() -> int:
    """Return how many processes this machine's kernel has killed for lack of memory; 0: unknown."""
    with suppress(OSError, ValueError):
        for line in OOM_KILLS.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def explain_shortage(account: str) -> str:
    r"""Return what matters to a person in Ray's account, which is long.

    >>> told = "Memory was 9GB used.\nObjects: 0\nTop 10 memory users: PID\n7 9.00 python"
    >>> print(explain_shortage(told + "\nRefer to the documentation."))
    the node had no memory left, and Ray ended the process: Memory was 9GB used.
    Top 10 memory users: PID
    7 9.00 python
    """
    summary = account.partition("\n")[0][:LONGEST_SUMMARY]
    users = re.search(r"^Top \d+ memory users:.*?(?=^Refer to|\Z)", account, re.DOTALL | re.M)
    words = f"the node had no memory left, and Ray ended the process: {summary}"
    return words + (f"\n{users[0].strip()}" if users else "")

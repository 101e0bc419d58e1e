"""How child processes end: with the process that started them, or at once after a fork."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final, NoReturn

LOOK_SECONDS: Final = 1.0
PR_SET_PDEATHSIG: Final = 1
"""Of `prctl`, from Linux' sys/prctl.h."""


def end_with_parent() -> None:
    """Let this process end, as by SIGTERM, soon after the one that started it.

    Otherwise it would go on for as long as it likes where the service and its guard are killed at
    once. The system call for this looks at a thread of the starter, which may end before.
    """
    parent = os.getppid()
    watch = threading.Thread(target=_watch, args=[parent], name="parent", daemon=True)
    watch.start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def die_with_starter() -> None:
    """Have Linux kill this process, even if it is stopped, when the thread that started it ends.

    What it forks does not inherit that.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def reap(end: int) -> int:
    """Wait for a child, given as a `pidfd`, and close that.

    Return its exit status, or minus the number of the signal that ended it.
    """
    seen = os.waitid(os.P_PIDFD, end, os.WEXITED)
    os.close(end)
    assert seen is not None
    return seen.si_status if seen.si_code == os.CLD_EXITED else -seen.si_status


def end_fork(status: int) -> NoReturn:
    """End a forked process with what it has written, and without the clean-up of its parent."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    logging.shutdown()
    os._exit(status)

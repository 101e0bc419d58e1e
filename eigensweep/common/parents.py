"""Ends a process when the one that started it has gone, however that ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final

LOOK_SECONDS: Final = 1.0


def end_with_parent() -> None:
    """Let this process end, as by SIGTERM, soon after the one that started it.

    Otherwise it would go on for as long as it likes where the service and its guard are killed at
    once. Linux alone has a system call for this, and that one looks at a thread of the starter.
    """
    parent = os.getppid()
    watch = threading.Thread(target=_watch, args=[parent], name="parent", daemon=True)
    watch.start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)

"""Lets a folder hang in each process that has this on its path, while the file `HANGS` exists.

As on a network's disk that does not answer, whoever opens, lists, makes, moves or removes something
below the folder `HANGING_FOLDER` waits, and nobody else.
"""

from __future__ import annotations

import os
import sys
import time

FOLDER, FLAG = os.environ.get("HANGING_FOLDER"), os.environ.get("HANGS", "")
EVENTS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.link"}


def wait(event: str, given: tuple[object, ...]) -> None:
    """Wait while the folder hangs, where an event of Python's is about it."""
    if event in EVENTS and isinstance(given[0], str | os.PathLike):
        while os.fspath(given[0]).startswith(FOLDER) and os.path.exists(FLAG):
            time.sleep(0.1)


if FOLDER:
    sys.addaudithook(wait)

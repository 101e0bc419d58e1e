"""Kills all that the service's process has started when that process ends, for whatever reason.

A script in a process of its own: `guard.py <mark>`. Its standard input is a pipe from the service,
into which nothing is written. When the service is gone, even by SIGKILL, the pipe is closed.

What a service has started carries a mark in its environment. Children inherit it, and keep it when
the process between them and the service dies. The mark contains the home folder. So if a service
and its guard were both killed, the next service of this home folder can kill what they left.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psutil  # type: ignore[import-untyped]

VARIABLE = "EIGENSWEEP_STARTED_BY"
LONGEST = 20.0  # seconds that killed processes may take to be gone
PAUSE = 0.1  # seconds between two searches


def main(mark: str) -> None:
    """Wait for the end of standard input, then kill what carries the mark."""
    sys.stdin.read()
    kill(lambda found: found.endswith(mark))  # parts of the service put a word before it


def new_mark(home: Path) -> str:
    """Return a unique mark for a service in this home folder."""
    return f"{uuid4().hex}:{home.resolve()}"


def environment(mark: str) -> dict[str, str]:
    """Return the environment variables that mark a process.

    The second one keeps Ray's agents from overwriting the first when they set their title.
    """
    return {VARIABLE: mark, "SPT_NOENV": "1"}


def of_home(home: Path, but: str) -> Callable[[str], bool]:
    """Return a test for marks of this home folder's services, except for the mark `but`."""
    return lambda found: not found.endswith(but) and found.partition(":")[2] == str(home.resolve())


def kill(matches: Callable[[str], bool]) -> int:
    """Kill every process whose mark matches, except this one; return how many there were.

    It ends when two searches in a row find none: a process can start others before it is killed.
    """
    killed: set[tuple[int, float]] = set()
    clean, deadline = 0, time.monotonic() + LONGEST
    while clean < 2 and time.monotonic() < deadline:
        found = find_marked(matches)
        clean = 0 if found else clean + 1
        for process in found:
            with suppress(psutil.NoSuchProcess):
                killed.add((process.pid, process.create_time()))
                process.kill()
        time.sleep(PAUSE)
    return len(killed)


def find_marked(matches: Callable[[str], bool]) -> list[psutil.Process]:
    """Return the living processes whose mark matches, except this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            mark = process.environ().get(VARIABLE)
            living = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if mark is not None and living and matches(mark):
                found.append(process)
    return found


if __name__ == "__main__":
    main(sys.argv[1])

"""Watches a process and ends, when that ends in whatever way, all that it has started.

A script: `guard.py <mark>`, with a pipe from the watched process as standard input, into which
nothing is ever written. When the process is gone, be it by SIGKILL, so is the pipe's other end.

What a service has started is known by a mark in its environment, which children inherit. It is
there from birth, and stays when a parent between them and the service dies. The mark names the home
folder, so that whoever comes next there can end what a service and its guard, both killed, left.
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
LONGEST = 20.0  # seconds that processes may take to be gone
PAUSE = 0.1  # seconds between two looks


def main(mark: str) -> None:
    """Wait for the end of standard input, then clear up."""
    sys.stdin.read()
    end(lambda found: found == mark)


def new_mark(home: Path) -> str:
    """Return a mark that no other service has, of a service in this home folder."""
    return f"{uuid4().hex}:{home.resolve()}"


def environment(mark: str) -> dict[str, str]:
    """Return the variables that mark what is started with them.

    The second keeps Ray's agents, when they set their title, from writing over the first.
    """
    return {VARIABLE: mark, "SPT_NOENV": "1"}


def of_home(home: Path, but: str) -> Callable[[str], bool]:
    """Return whether a mark is of another service in this home folder than the one marked `but`."""
    return lambda found: found != but and found.partition(":")[2] == str(home.resolve())


def end(matches: Callable[[str], bool]) -> int:
    """Kill every process but this one whose mark matches; return how many there were.

    It looks until twice in a row there is none: a process can be born while others are killed.
    """
    killed: set[tuple[int, float]] = set()
    clean, deadline = 0, time.monotonic() + LONGEST
    while clean < 2 and time.monotonic() < deadline:
        found = marked(matches)
        clean = 0 if found else clean + 1
        for process in found:
            with suppress(psutil.NoSuchProcess):
                killed.add((process.pid, process.create_time()))
                process.kill()
        time.sleep(PAUSE)
    return len(killed)


def marked(matches: Callable[[str], bool]) -> list[psutil.Process]:
    """Return the living processes, but for this one, whose mark matches."""
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
